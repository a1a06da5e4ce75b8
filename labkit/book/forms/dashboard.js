// The state of a job: a table whose cells are written over, a list of events, and buttons.

let boards = 0;
const COLUMNS = [["rank", "rank"], ["state", "state"], ["step", "step"], ["doing", "doing, or waiting for"], ["bytes", "sent"], ["messages", "messages"]];

function render({ model, el }) {
  saysWhenItIsOver(model, el);
  const name = `lk-board-${Date.now().toString(36)}-${(boards += 1)}`;
  const { node: live, say, stop } = announcer();
  const caption = make("caption");
  const head = make("tr", {}, ...COLUMNS.map(([, title]) => make("th", { scope: "col" }, title)));
  const body = make("tbody");
  const table = make("table", { class: "lk-table" }, caption, make("thead", {}, head), body);
  const events = make("ol", { class: "lk-events", tabindex: "0", "aria-label": "What happened" });
  const nothing = make("p", { class: "lk-soft" }, "Nothing has happened yet.");
  const press = (action) => () => {
    if (model.get("over")) say("The run is over.");
    else model.send(action === "stop" ? { action } : { action, rank: Number(rank.value) });
  };
  const rank = make("select", { id: `${name}-rank` }, ...model.get("rows").map((row) => make("option", { value: row.rank }, `${row.rank}`)));
  const buttons = [make("button", { type: "button", onclick: press("stop") }, "Stop the run")];
  const strikes = !model.get("controls") ? [] : [["kill", "Kill"], ["hang", "Hang"], ["slow", `Slow (× ${model.get("slower")})`]]
    .map(([action, title]) => make("button", { type: "button", onclick: press(action) }, title));
  const bar = make("div", { class: "lk-row" }, ...buttons, ...(strikes.length
    ? [make("label", { for: `${name}-rank` }, "Rank"), rank, ...strikes] : []));
  const box = make("div", { class: "lk-panel", role: "group", "aria-label": "Dashboard of the run" },
    bar, make("div", { class: "lk-scroll", tabindex: "0", role: "region", "aria-label": "Ranks" }, table), nothing, events, live);
  let heard = model.get("events").length;

  function showRows() {
    model.get("rows").forEach((row, i) => {
      if (!body.children[i]) {
        body.append(make("tr", {}, ...COLUMNS.map(([key]) => make(key === "rank" ? "th" : "td", key === "rank" ? { scope: "row" } : {}))));
      }
      const line = body.children[i];
      line.dataset.state = row.state;
      COLUMNS.forEach(([key], k) => {
        const text = key === "state" ? `${row.mark} ${row.state}${row.since}` : `${row[key]}`;
        if (line.children[k].textContent !== text) line.children[k].textContent = text;
      });
    });
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
    for (const button of [...buttons, ...strikes]) button.setAttribute("aria-disabled", over);
    if (over) say(model.get("headline"));
  }
  const tell = () => say(model.get("said"));
  showRows(); showEvents(); showHead(); showOver();
  el.append(box);
  const followed = [["change:rows", showRows], ["change:events", showEvents], ["change:headline", showHead],
    ["change:over", showOver], ["change:said", tell]];
  followed.forEach(([event, react]) => model.on(event, react));
  return () => { stop(); followed.forEach(([event, react]) => model.off(event, react)); };
}

export default { initialize, render };
