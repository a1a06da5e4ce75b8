// The controls of a Form: native HTML, patched in place so that the focus stays where it is.
// The page knows no answers. It sends {id, action, value} and shows what Python says to it.

const MARKS = { open: "", right: "✓ Right", wrong: "✗ Not right", done: "● Answered" };
let forms = 0;

const htmlOf = (one) => (typeof one === "object" ? one.html : String(one).replace(/&(?!\w+;|#)/g, "&amp;"));

function options(item, key, type) {
  const inputs = item.choices.map((_, i) => make("input", { type, name: key, id: `${key}-${i}`, value: i }));
  const rows = item.choices.map((one, i) =>
    make("div", { class: "lk-option" }, inputs[i], make("label", { for: `${key}-${i}`, html: `${"abcdefghijkl"[i]}) ${htmlOf(one)}` })));
  return { node: make("div", {}, ...rows), inputs };
}

// Each kind makes its controls and returns {node, get, set}; get() gives the value, or throws what is missing.
const KINDS = {
  number(item, key) {
    const boxes = item.boxes || [{ label: "Your answer", unit: item.unit }];
    const inputs = boxes.map((box, i) =>
      make("input", { type: "text", inputmode: "decimal", id: `${key}-${i}`, autocomplete: "off", size: 12 }));
    const rows = boxes.map((box, i) => make("div", { class: "lk-row" },
      make("label", { for: `${key}-${i}`, html: box.label || "Your answer" }), inputs[i],
      make("span", { class: "lk-unit" }, box.unit || "")));
    return {
      node: make("div", {}, ...rows),
      get() {
        if (inputs.some((input) => !input.value.trim())) throw inputs.length > 1 ? "Fill in every box first." : "Type a number first.";
        const values = inputs.map((input) => input.value.trim());
        return item.boxes ? values : values[0];
      },
      set(value) {
        const values = item.boxes ? value : [value];
        inputs.forEach((input, i) => { input.value = value === null || values[i] === undefined ? "" : values[i]; });
      },
    };
  },

  text(item, key) {
    const input = make("input", { type: "text", id: key, autocomplete: "off", class: "lk-wide" });
    const row = make("div", { class: "lk-row" }, make("label", { for: key, html: item.label || "Your answer" }), input);
    return {
      node: row,
      get() { if (!input.value.trim()) throw "Write an answer first."; return input.value.trim(); },
      set(value) { input.value = value === null ? "" : value; },
    };
  },

  choice(item, key) {
    const { node, inputs } = options(item, key, "radio");
    return {
      node,
      get() {
        const chosen = inputs.findIndex((input) => input.checked);
        if (chosen < 0) throw "Choose one first.";
        return chosen;
      },
      set(value) { inputs.forEach((input, i) => { input.checked = i === value; }); },
    };
  },

  several(item, key) {
    const { node, inputs } = options(item, key, "checkbox");
    return {
      node: make("div", {}, make("p", { class: "lk-how" }, "Choose all that apply:"), node),
      get: () => inputs.flatMap((input, i) => (input.checked ? [i] : [])),
      set(value) { inputs.forEach((input, i) => { input.checked = (value || []).includes(i); }); },
    };
  },

  order(item, key, say) {
    let order = item.items.map((_, i) => i);
    const list = make("ol", { class: "lk-order" });
    const words = item.items.map((one) => make("span", { html: htmlOf(one) }));
    const rows = item.items.map((_, i) => make("li", {}, words[i], ...["Up", "Down"].map((name) => make("button", {
      type: "button", class: "lk-move", "aria-label": `${name}: ${words[i].textContent}`,
      onclick: (event) => move(i, name === "Up" ? -1 : 1, event.currentTarget),
    }, name === "Up" ? "↑ Up" : "↓ Down"))));
    function show() {
      order.forEach((i, place) => {
        if (list.children[place] !== rows[i]) list.insertBefore(rows[i], list.children[place] || null);
        const [up, down] = rows[i].querySelectorAll("button");
        up.setAttribute("aria-disabled", place === 0);
        down.setAttribute("aria-disabled", place === order.length - 1);
      });
    }
    function move(i, by, button) {
      const from = order.indexOf(i), to = from + by;
      if (to >= 0 && to < order.length) {
        [order[from], order[to]] = [order[to], order[from]];
        show();
        button.focus(); // moving a row takes the focus away from it
      }
      say(`${words[i].textContent.replace(/\.$/, "")}: place ${order.indexOf(i) + 1} of ${order.length}`);
    }
    show();
    return {
      node: list,
      get: () => [...order],
      set(value) { if (value) { order = [...value]; show(); } },
    };
  },

  sketch(item, key) {
    const [columns, levels] = [item.x.length, item.y.length];
    const touched = new Set();
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of [["viewBox", `0 0 ${columns} 100`], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
    const grid = item.y.map((_, k) => `<path d="M0 ${height(k)} H${columns}" class="lk-grid" vector-effect="non-scaling-stroke"/>`);
    svg.innerHTML = grid.join("") + `<polyline class="lk-trace" vector-effect="non-scaling-stroke"/>`;
    const line = svg.querySelector("polyline");
    function height(k) { return 100 - (100 * k) / (levels - 1); }
    const inputs = item.x.map((x, i) => make("input", {
      type: "range", min: 0, max: levels - 1, step: 1, value: 0, id: `${key}-${i}`, orient: "vertical",
      "aria-label": `${item.x_label || "column"} ${x}: ${item.y_label || "level"}`, "aria-orientation": "vertical",
      oninput: () => { touched.add(i); draw(); },
    }));
    const shown = item.x.map((x) => make("span", { class: "lk-column", "aria-hidden": "true" }, `${x}`));
    const values = item.x.map(() => make("span", { class: "lk-column lk-value", "aria-hidden": "true" }));
    function draw() {
      line.setAttribute("points", inputs.map((input, i) => `${i + 0.5},${height(Number(input.value))}`).join(" "));
      line.setAttribute("class", touched.size ? "lk-trace" : "lk-trace lk-draft");
      inputs.forEach((input, i) => {
        const level = `${item.y[Number(input.value)]}`;
        input.setAttribute("aria-valuetext", `${level}${touched.has(i) ? "" : ", not moved yet"}`);
        values[i].textContent = level;
      });
    }
    draw();
    // Drawn in one stroke: the pointer moves every point whose column it crosses, and before that the nearest one.
    const ranges = make("div", { class: "lk-ranges" }, ...inputs);
    const field = make("div", { class: "lk-field" }, svg, ranges);
    let last = null, alone = -1; // where the stroke was before, in columns and levels; its first column, until a second
    function at(event) {
      const box = ranges.getBoundingClientRect(), thumb = 20;
      const up = (box.bottom - thumb / 2 - event.clientY) / (box.height - thumb);
      return [((event.clientX - box.left) / box.width) * columns - 0.5, Math.min(Math.max(up, 0), 1) * (levels - 1)];
    }
    function put(i, level) {
      inputs[i].value = Math.round(level);
      touched.add(i);
    }
    function stroke(event) {
      const [x, level] = at(event), [from, before] = last;
      for (let i = 0; i < columns; i += 1) {
        if (i === alone || (i - from) * (i - x) > 0 || x === from) continue;
        put(i, before + ((level - before) * (i - from)) / (x - from));
        alone = -1;
      }
      if (alone >= 0 && Math.abs(x - alone) < 0.3) put(alone, level);
      last = [x, level];
      draw();
    }
    field.addEventListener("mousedown", (event) => event.preventDefault()); // a range would take the pointer for itself
    field.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      last = at(event);
      alone = Math.min(Math.max(Math.round(last[0]), 0), columns - 1);
      stroke(event);
      inputs[alone].focus();
      field.setPointerCapture(event.pointerId);
    });
    field.addEventListener("pointermove", (event) => { if (field.hasPointerCapture(event.pointerId)) stroke(event); });
    const ticks = item.y.map((level, k) => make("span", { style: `bottom:${(100 * k) / (levels - 1)}%` }, `${level}`));
    return {
      node: make("div", { class: "lk-sketch", style: `--columns:${columns}` },
        make("div", { class: "lk-axis", "aria-hidden": "true" }, `${item.y_label || ""}`),
        make("div", { class: "lk-plot" },
          make("div", { class: "lk-ticks", "aria-hidden": "true" }, ...ticks),
          field),
        make("div", { class: "lk-columns" }, ...shown),
        make("div", { class: "lk-axis lk-under", "aria-hidden": "true" }, `${item.x_label || ""}`),
        make("div", { class: "lk-columns lk-drawn" }, ...values)),
      get() {
        if (!touched.size) throw "Draw first: move at least one point.";
        return inputs.map((input) => item.y[Number(input.value)]);
      },
      set(value) {
        if (!value) return;
        value.forEach((level, i) => { inputs[i].value = Math.max(0, item.y.indexOf(level)); touched.add(i); });
        draw();
      },
    };
  },

  slider(item, key, say, send) {
    const output = make("output", { for: key });
    const input = make("input", { type: "range", min: item.min, max: item.max, step: item.step || 1, id: key, class: "lk-wide" });
    let waiting = null;
    function show() {
      output.textContent = `${input.value} ${item.unit || ""}`;
      input.setAttribute("aria-valuetext", output.textContent.trim());
    }
    input.addEventListener("input", () => {
      show();
      clearTimeout(waiting); // while it is dragged, at most one message every 80 ms
      waiting = setTimeout(() => send("change", Number(input.value)), 80);
    });
    show();
    return {
      node: make("div", { class: "lk-row" }, make("label", { for: key, html: item.label || "Value" }), input, output),
      get: () => Number(input.value),
      set(value) { if (value !== null && document.activeElement !== input) { input.value = value; show(); } },
    };
  },

  button() { return { node: make("span"), get: () => null, set() {} }; },
};

function showItem(item, key, buttons, say, send) {
  const legend = make("legend"), rest = make("div", { id: `${key}-more` });
  const status = make("div", { class: "lk-feedback", id: `${key}-said` });
  const parts = KINDS[item.kind](item, key, say, (action, value) => send(item.id, action, value));
  const mine = item.buttons || (item.kind === "slider" ? [] : buttons);
  const bar = make("div", { class: "lk-buttons" }, ...mine.map((button) => make("button", {
    type: button.id === "submit" ? "submit" : "button", "data-action": button.id,
    onclick: (event) => { if (button.id !== "submit" && !locked()) act(button.id, event); },
  }, button.label)));
  const fieldset = make("fieldset", { "aria-describedby": `${key}-more ${key}-said` }, legend, rest, parts.node, bar, status);
  const form = make("form", { class: "lk-item", novalidate: true, autocomplete: "off" }, fieldset);
  let now = item;

  const locked = () => (now.locked === undefined || now.locked === null ? ["right", "done"].includes(now.state) : now.locked);
  function act(action, event) {
    event.preventDefault();
    try {
      const value = action === "submit" ? parts.get() : null;
      delete form.dataset.changed;
      send(now.id, action, value);
    } catch (missing) {
      if (typeof missing !== "string") throw missing;
      say(missing);
      status.replaceChildren(make("p", {}, missing));
    }
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!locked() && mine.some((button) => button.id === "submit")) act("submit", event);
  });
  parts.node.addEventListener("keydown", (event) => { // JupyterLab keeps a page from submitting forms on Enter
    if (event.key !== "Enter" || event.isComposing || event.target.tagName !== "INPUT") return;
    event.preventDefault();
    form.requestSubmit();
  });
  // A verdict is that of the answer which was given: once another one stands there, it says so (controls.css).
  const changed = () => { form.dataset.changed = true; };
  for (const kind of ["input", "change"]) parts.node.addEventListener(kind, changed);
  parts.node.addEventListener("click", (event) => { if (event.target.matches(".lk-move")) changed(); });
  // A locked control stays reachable, so that the focus is not lost, but takes no change.
  for (const kind of ["keydown", "pointerdown", "mousedown", "click"]) {
    parts.node.addEventListener(kind, (event) => {
      if (!locked() || ["Tab", "Escape"].includes(event.key) || !event.target.closest("input,button,label")) return;
      if (event.target.type === "text" && !event.target.matches("button")) return;
      event.preventDefault();
      event.stopPropagation();
    }, true);
  }

  function prompt(html) {
    const box = make("div", { html });
    const first = box.firstElementChild;
    if (first && first.tagName === "P") { // the first paragraph names the group, the others describe it
      legend.innerHTML = first.innerHTML;
      first.remove();
      rest.innerHTML = box.innerHTML.trim();
    } else { legend.innerHTML = html; rest.innerHTML = ""; }
    rest.hidden = !rest.innerHTML;
    legend.hidden = !legend.innerHTML;
  }
  function update(next, first) {
    const before = now;
    if (!first && JSON.stringify(before) === JSON.stringify(next)) return;
    now = next;
    if (first || before.html !== now.html) prompt(now.html);
    if (first || JSON.stringify(before.value) !== JSON.stringify(now.value)) parts.set(now.value);
    form.dataset.state = now.state;
    const shut = locked();
    for (const one of [...parts.node.querySelectorAll("input"), ...bar.querySelectorAll("button")]) {
      if (shut) one.setAttribute("aria-disabled", "true"); else one.removeAttribute("aria-disabled");
      if (one.type === "text") one.readOnly = shut;
    }
    const mark = now.state_text ? `${(MARKS[now.state] || "● ").slice(0, 2)}${now.state_text}` : MARKS[now.state];
    status.replaceChildren(...(mark ? [make("p", { class: "lk-mark" }, mark)] : []), make("div", { html: now.feedback || "" }));
    if (!first) say(status.innerText || status.textContent);
  }
  // The notebook waits for this item: come into view, and take the focus unless somebody types elsewhere.
  function call() {
    const typing = document.activeElement?.closest("input, textarea, select, [contenteditable=true]");
    const field = parts.node.querySelector("input:checked, input, button") || bar.querySelector("button");
    form.scrollIntoView({ block: "center" });
    if (field && (!typing || form.contains(typing))) field.focus({ preventScroll: true });
    say("This question waits for your answer.");
  }
  update(item, true);
  return { node: form, update, call };
}

function render({ model, el }) {
  saysWhenItIsOver(model, el);
  const name = `lk-form-${Date.now().toString(36)}-${(forms += 1)}`;
  const live = announcer(), say = live.say;
  const send = (id, action, value) => model.send({ id, action, value });
  const title = model.get("title");
  const shown = new Map();
  const box = make("div", { class: "lk-form", role: "group", "aria-label": title || "Questions" },
    ...(title ? [make("p", { class: "lk-title" }, title)] : []));
  for (const [i, item] of model.get("items").entries()) {
    const one = showItem(item, `${name}-${i}`, model.get("buttons"), say, send);
    shown.set(item.id, one);
    box.append(one.node);
  }
  box.append(live.node);
  box.addEventListener("keydown", runsTheCell, true);
  el.append(box);
  const follow = () => { for (const item of model.get("items")) shown.get(item.id)?.update(item, false); };
  // The call may come before this view is there. Run All goes to its last cell when it ends, a moment after the call.
  let calling = null;
  const hear = () => {
    if (!model.get("called")) return;
    clearTimeout(calling);
    calling = setTimeout(() => {
      shown.get(model.get("called"))?.call();
      model.set("called", ""); // so that the same call can come again
      model.save_changes();
    }, 400);
  };
  hear();
  model.on("change:items", follow);
  model.on("change:called", hear);
  return () => { live.stop(); clearTimeout(calling); model.off("change:items", follow); model.off("change:called", hear); };
}

export default { initialize, render };
