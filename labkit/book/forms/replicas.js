// A fault-tolerant run: one picture that is replaced as it grows, the same in words, a table of ranks, and buttons.

let fleets = 0;
const STILL_MS = 2000; // between two pictures, for who asked for little motion
const SEEN = [["rank", "rank"], ["replica", "replica"], ["state", "state"], ["step", "step"], ["doing", "doing, or waiting for"]];
const MEMBERS = [["steps", "steps"], ["trained by", "trained by replicas"], ["zeros from", "zeros from replicas"]];

function render({ model, el }) {
  saysWhenItIsOver(model, el);
  const name = `lk-fleet-${Date.now().toString(36)}-${(fleets += 1)}`;
  const { node: live, say, stop } = announcer();
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  const cells = (columns, kind) => columns.map(([, title]) => make(kind, { scope: "col" }, title));
  const caption = make("caption");
  const body = make("tbody");
  const table = make("table", { class: "lk-table lk-fleet" }, caption, make("thead", {}, make("tr", {}, ...cells(SEEN, "th"))), body);
  const members = make("tbody");
  const words = make("p");
  const inWords = make("details", {}, make("summary", {}, "The picture in words"), words,
    make("table", { class: "lk-table" }, make("caption", {}, "Who trained which steps"), make("thead", {}, make("tr", {}, ...cells(MEMBERS, "th"))), members));
  const picture = make("div", { class: "lk-picture lk-scroll", tabindex: "0", role: "region", "aria-label": "Picture of the run" });
  const events = make("ol", { class: "lk-events", tabindex: "0", "aria-label": "What happened" });
  const nothing = make("p", { class: "lk-soft" }, "No rank is lost so far.");
  const press = (action) => () => {
    if (model.get("over")) { say("The run is over."); return; }
    model.send(action === "stop" ? { action } : { action, rank: Number(rank.value) });
    if (action !== "stop") say(`${titles[action]}: rank ${rank.value}`);
  };
  const titles = { kill: "Kill", hang: "Hang", slow: `Slow (× ${model.get("slower")})`, flip: "Flip a bit" };
  const rank = make("select", { id: `${name}-rank` }, ...model.get("ranks").map((text, i) => make("option", { value: i }, text)));
  const strikes = !model.get("controls") ? [] : Object.entries(titles)
    .map(([action, title]) => make("button", { type: "button", onclick: press(action) }, title));
  const end = make("button", { type: "button", onclick: press("stop") }, "Stop the run");
  let paused = false;
  const pause = make("button", { type: "button", "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", `${paused}`);
    if (!paused) draw();
  } }, "Pause the picture");
  const struck = strikes.length ? [make("label", { for: `${name}-rank` }, "Rank"), rank, ...strikes] : [];
  const box = make("div", { class: "lk-panel", role: "group", "aria-label": "Dashboard of the replicas" },
    make("div", { class: "lk-row" }, ...struck), make("div", { class: "lk-row" }, pause, end), picture, inWords, nothing, events,
    make("div", { class: "lk-scroll", tabindex: "0", role: "region", "aria-label": "Ranks" }, table), live);
  let heard = model.get("events").length;
  let drawn = -STILL_MS;

  function fill(into, columns, rows, text) {
    rows.forEach((row, i) => {
      if (!into.children[i]) into.append(make("tr", {}, ...columns.map((_, k) => make(k ? "td" : "th", k ? {} : { scope: "row" }))));
      into.children[i].dataset.state = row.state || "";
      columns.forEach(([key], k) => {
        const shown = text(row, key);
        if (into.children[i].children[k].textContent !== shown) into.children[i].children[k].textContent = shown;
      });
    });
    while (into.children.length > rows.length) into.lastChild.remove();
  }
  const showRows = () => fill(body, SEEN, model.get("rows"), (row, key) => (key === "state" ? `${row.mark} ${row.state}` : `${row[key]}`));
  function draw() {
    const now = performance.now();
    if (paused || (calm && now - drawn < STILL_MS && !model.get("over"))) return;
    drawn = now;
    if (model.get("svg")) picture.innerHTML = model.get("svg");
    else picture.textContent = "The ranks are starting: no step is committed yet.";
    words.textContent = model.get("words");
    fill(members, MEMBERS, model.get("members"), (row, key) => `${row[key]}`);
  }
  function showEvents() {
    const all = model.get("events");
    nothing.hidden = all.length > 0;
    events.hidden = all.length === 0;
    events.replaceChildren(...all.map((text) => make("li", {}, text)));
    events.scrollTop = events.scrollHeight;
    if (all.length > heard) say(all.slice(heard).join(". "));
    heard = all.length;
  }
  function showHead() { caption.textContent = model.get("headline"); }
  function showOver() {
    const over = model.get("over");
    for (const button of [end, ...strikes]) button.setAttribute("aria-disabled", over);
    if (over) { draw(); say(model.get("headline")); }
  }
  const tell = () => say(model.get("said"));
  showRows(); showEvents(); showHead(); showOver(); draw();
  el.append(box);
  const followed = [["change:rows", showRows], ["change:events", showEvents], ["change:headline", showHead],
    ["change:over", showOver], ["change:said", tell], ["change:svg", draw]];
  followed.forEach(([event, react]) => model.on(event, react));
  return () => { stop(); followed.forEach(([event, react]) => model.off(event, react)); };
}

export default { initialize, render };
