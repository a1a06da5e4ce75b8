// Nothing to see: it gives the page plotly's module, for all plots (plot.js).
export default {
  initialize({ model }) {
    window.lkPlotly ??= import(URL.createObjectURL(new Blob([model.get("source")], { type: "text/javascript" })));
  },
};
