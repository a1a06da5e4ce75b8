// What native widgets of a panel lack: Shift-Enter goes on, as in a form; the handle of a slider gets the name of the
// label beside it; and a plot, which plotly draws before it knows its place, gets the width of the panel.
export default {
  render({ el }) {
    let panel = null;
    const fit = () => {
      const wrong = (plot) => {
        const drawn = plot.querySelector(".main-svg");
        return drawn && plot.clientWidth && Math.abs(drawn.clientWidth - plot.clientWidth) > 1;
      };
      if ([...panel.querySelectorAll(".js-plotly-plot")].some(wrong)) window.dispatchEvent(new Event("resize"));
    };
    const sizes = new ResizeObserver(fit);
    const look = () => { // once it is in the page
      panel = el.closest(".lk-bench");
      if (!panel) return;
      panel.addEventListener("keydown", runsTheCell, true);
      sizes.observe(panel);
      for (const slider of panel.querySelectorAll(".widget-slider")) {
        const label = slider.querySelector(".widget-label")?.textContent;
        for (const handle of slider.querySelectorAll("[role=slider]")) handle.setAttribute("aria-label", label);
      }
    };
    const frame = requestAnimationFrame(look);
    const later = setTimeout(look, 1000);
    return () => { cancelAnimationFrame(frame); clearTimeout(later); sizes.disconnect(); };
  },
};
