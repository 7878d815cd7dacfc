// The controls above a plot over updates: which curves are drawn, and of which updates. All plots over updates show the
// same range, whether it was set by a button, a field, or by dragging in one of them.
(() => {
  "use strict";
  const { chosen, draw, linked, ready } = reportPlots;
  const panel = document.querySelector("[data-controls]");
  const whole = panel ? panel.dataset.whole.split(",").map(Number) : null;
  const fields = panel ? [...panel.querySelectorAll("[data-end]")] : [];

  const tell = () => {
    const [low, high] = chosen.updates ?? whole;
    fields[0].value = String(Math.round(low));
    fields[1].value = String(Math.round(high));
  };

  const show = (low, high) => {
    const least = Math.min(2, whole[1] - whole[0]);
    const width = Math.max(least, Math.min(high - low, whole[1] - whole[0]));
    const start = Math.min(Math.max(low, whole[0]), whole[1] - width);
    chosen.updates = width === whole[1] - whole[0] ? null : [start, start + width];
    tell();
    return draw();
  };

  const moved = (move) => {
    const [low, high] = chosen.updates ?? whole;
    const width = high - low;
    const by = { in: [width / 4, -width / 4], out: [-width / 2, width / 2], back: [-width / 2, -width / 2], on: [width / 2, width / 2] }[move];
    return show(low + by[0], high + by[1]);
  };

  const view = (name) => {
    chosen.view = name;
    for (const button of panel.querySelectorAll("[data-view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === name));
    }
    return draw();
  };

  if (panel) {
    panel.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.view) view(button.dataset.view);
      if (button.dataset.move) moved(button.dataset.move);
      if (button.dataset.go) show(...button.dataset.go.split(",").map(Number));
    });
    panel.addEventListener("change", () => {
      const [low, high] = fields.map((field) => Number(field.value));
      if (Number.isFinite(low) && Number.isFinite(high) && low < high) show(low, high);
      else tell();
    });
  }

  const dragged = (change) => {
    const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (change["xaxis.autorange"]) chosen.updates = null;
    else if (range.every((end) => typeof end === "number")) chosen.updates = [...range];
    else return;
    if (panel) tell();
    draw();
  };
  ready.then(() => linked.forEach((place) => place.on("plotly_relayout", dragged)));
})();
