// What native widgets of a panel lack: Shift-Enter goes on, as in a form; and the handle of a slider gets the name of
// the label beside it, as ipywidgets gives it none.
export default {
  render({ el }) {
    const name = () => {
      el.closest(".lk-bench")?.addEventListener("keydown", runsTheCell, true);
      for (const slider of el.closest(".widget-vbox")?.querySelectorAll(".widget-slider") ?? []) {
        const label = slider.querySelector(".widget-label")?.textContent;
        for (const handle of slider.querySelectorAll("[role=slider]")) handle.setAttribute("aria-label", label);
      }
    };
    const frame = requestAnimationFrame(name); // once it is in the page
    const later = setTimeout(name, 1000);
    return () => { cancelAnimationFrame(frame); clearTimeout(later); };
  },
};
