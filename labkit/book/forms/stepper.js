// A picture for each step: a range input, three buttons (one plays), and the step in words for those who do not see the picture.

let steppers = 0;
const PACE = 1800; // milliseconds a step, while it plays

function render({ model, el }) {
  saysWhenItIsOver(model, el);
  const name = `lk-step-${Date.now().toString(36)}-${(steppers += 1)}`;
  const { node: live, say, stop } = announcer();
  const last = model.get("last");
  let playing = null;
  const move = (by) => () => { pause(); go(model.get("step") + by); };
  const play = make("button", { type: "button", onclick: () => (playing ? pause() : begin()) }, "▶ Play");
  const back = make("button", { type: "button", onclick: move(-1) }, "← Previous");
  const on = make("button", { type: "button", onclick: move(1) }, "Next →");
  const range = make("input", { type: "range", min: 0, max: last, step: 1, id: name, class: "lk-wide",
    oninput: () => { pause(); go(Number(range.value)); } });
  const output = make("output", { for: name });
  const picture = make("div", { class: "lk-picture lk-scroll", tabindex: "0", role: "group", "aria-label": `Picture: ${model.get("title")}` });
  const box = make("div", { class: "lk-panel", role: "group", "aria-label": `Step through ${model.get("title")}` },
    make("div", { class: "lk-row" }, play, back, on, make("label", { for: name }, model.get("label")), range, output), picture, live);

  function begin() {
    if (model.get("step") === last) go(0);
    playing = setInterval(() => (model.get("step") < last ? go(model.get("step") + 1) : pause()), PACE);
    play.textContent = "❚❚ Pause";
  }
  function pause() {
    clearInterval(playing);
    playing = null;
    play.textContent = "▶ Play";
  }
  function go(step) {
    const next = Math.min(Math.max(step, 0), last);
    if (next !== model.get("step")) { model.set("step", next); model.save_changes(); }
  }
  function show() {
    const step = model.get("step");
    range.value = step;
    output.textContent = `${step} of ${last}`;
    range.setAttribute("aria-valuetext", output.textContent);
    back.setAttribute("aria-disabled", step === 0); // not disabled: it would lose the focus
    on.setAttribute("aria-disabled", step === last);
    if (step === last) pause();
  }
  const draw = () => { picture.innerHTML = model.get("svg"); };
  const tell = () => say(model.get("words"));
  show();
  draw();
  el.append(box);
  const followed = [["change:step", show], ["change:svg", draw], ["change:words", tell]];
  followed.forEach(([event, react]) => model.on(event, react));
  return () => { pause(); stop(); followed.forEach(([event, react]) => model.off(event, react)); };
}

export default { initialize, render };
