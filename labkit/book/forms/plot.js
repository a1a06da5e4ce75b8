// A live figure of plotly whose module, five million characters, is loaded once for all plots of a page, while the first
// ranks run. What the kernel says before the module is there waits for it.
const TOLD = ["addTraces", "deleteTraces", "moveTraces", "restyle", "relayout", "update", "animate", "removeLayoutProps",
  "removeTraceProps"].map((what) => `_py2js_${what}`);

export default () => {
  let plot = null; // plotly's own widget, when it is there
  return {
    initialize({ model }) {
      const early = [];
      const hears = TOLD.map((name) => [`change:${name}`, () => early.push([name, model.get(name)])]);
      hears.forEach(([event, keep]) => model.on(event, keep));
      plot = shared().then((module) => {
        const real = module.default();
        hears.forEach(([event, keep]) => model.off(event, keep));
        real.initialize({ model });
        for (const [name, value] of early) {
          model.set(name, null);
          model.set(name, value); // now it is heard
        }
        return real;
      });
    },
    async render({ model, el }) { return (await plot).render({ model, el }); },
  };
};

async function shared() {
  while (!window.lkPlotly) await new Promise((done) => setTimeout(done, 20));
  return window.lkPlotly;
}
