// Shared by the modules beside it (view.py puts it in front of each).
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  // Or JupyterLab takes arrows and letters as commands to the notebook. It looks at the focused element only.
  if (tag === "button" || (tag === "input" && attributes.type !== "text") || tag === "select" || tag === "summary") node.dataset.lmSuppressShortcuts = "true";
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "html") node.innerHTML = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Shift-Enter runs the cell and goes to the next one, as everywhere in a notebook. JupyterLab does not hear it from a
// field or a button of ours; so it is told again, from where it listens.
function runsTheCell(event) {
  const notebook = event.currentTarget.closest(".jp-Notebook");
  if (event.key !== "Enter" || !event.shiftKey || event.isComposing || !notebook) return;
  event.preventDefault();
  event.stopPropagation();
  notebook.focus();
  const same = { key: "Enter", code: "Enter", keyCode: 13, shiftKey: true, bubbles: true, cancelable: true };
  setTimeout(() => notebook.dispatchEvent(new KeyboardEvent("keydown", same)), 50); // once it knows where the focus is
}

// A hidden line that a screen reader speaks when it changes; the same words twice are spoken twice.
function announcer() {
  const node = make("p", { role: "status", "aria-live": "polite", class: "lk-hidden" });
  let timer = null;
  const say = (text) => {
    clearTimeout(timer);
    node.textContent = "";
    timer = setTimeout(() => { node.textContent = text; }, 60);
  };
  return { node, say, stop: () => clearTimeout(timer) };
}

// anywidget gives a widget two seconds to be ready. One that takes longer, because the browser has much to do, is shown
// all the same, but never hears the kernel again: its model waits for a promise that was broken. So the model of ours
// does not wait; it is ready when this is called. (A handler of a change gets the model itself, which has the comm.)
function initialize({ model }) {
  const hear = (itself) => {
    const plain = Object.getPrototypeOf(Object.getPrototypeOf(itself))._handle_comm_msg;
    if (plain && itself.comm) itself.comm.on_msg(plain.bind(itself));
  };
  model.on("change:hears", hear);
  model.set("hears", true);
  model.off("change:hears", hear);
}

// When the kernel is restarted a model loses its comm: what stands in `el` says so then (controls.css).
function saysWhenItIsOver(model, el) {
  model.on("comm_live_update", () => el.classList.add("jupyter-widgets-disconnected"));
}
