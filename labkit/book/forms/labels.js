// ipywidgets gives the handle of a slider no name of its own: it gets that of the label beside it.
export default {
  render({ el }) {
    const name = () => {
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
