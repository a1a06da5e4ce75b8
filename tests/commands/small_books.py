"""Small notebooks to write, and to read back."""

import nbformat

KERNEL = {"name": "python3", "language": "python", "display_name": "Python 3"}


def cell(name, source, kind="code", **more):
    """A cell with the id `name`; `more` goes in as it is, such as metadata or outputs."""
    made = getattr(nbformat.v4, f"new_{kind}_cell")(source, id=name)
    made.update(nbformat.from_dict(more))
    return made


def write(path, *cells, **metadata):
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL, **metadata}, cells=list(cells))
    nbformat.write(notebook, path)
    return path


def read(path):
    return nbformat.read(path, as_version=4)


def sources(path):
    return {c.id: c.source for c in read(path).cells}


def printed(text):
    return [nbformat.v4.new_output("stream", text=text)]
