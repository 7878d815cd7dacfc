// Draws the figures that the page holds as JSON, in the colours of the theme in force: on load, when the theme
// changes, and in light colours for paper. A colour "@role" in a figure is the page's custom property --role. What the
// reader chose (a view, a range of updates) is kept in `chosen`, and each drawing is made from it.
const reportPlots = (() => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll("[data-figure]")];

  const painted = (value, style) => {
    if (typeof value === "string") {
      return value.startsWith("@") ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((entry) => painted(entry, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, painted(entry, style)]));
    }
    return value;
  };

  const axis = (own, style) => ({
    gridcolor: style.getPropertyValue("--grid").trim(),
    linecolor: style.getPropertyValue("--line").trim(),
    zeroline: false,
    zerolinecolor: style.getPropertyValue("--soft").trim(),
    ticks: "",
    ...own,
    title: { font: { size: 13, color: style.getPropertyValue("--soft").trim() }, standoff: 10, ...own.title },
  });

  const layoutOf = (figure, style, narrow) => {
    const own = painted(figure.layout, style);
    const axes = Object.keys(own).filter((key) => /^[xy]axis/.test(key));
    return {
      autosize: true,
      hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: narrow ? 50 : 64, r: 12, t: 12, b: 48 },
      font: { family: style.getPropertyValue("--sans").trim(), size: narrow ? 12 : 13, color: style.getPropertyValue("--ink").trim() },
      hoverlabel: {
        bgcolor: style.getPropertyValue("--surface").trim(),
        bordercolor: style.getPropertyValue("--line").trim(),
        font: { family: style.getPropertyValue("--sans").trim(), size: 13, color: style.getPropertyValue("--ink").trim() },
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: style.getPropertyValue("--soft").trim(), activecolor: style.getPropertyValue("--link").trim() },
      ...own,
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", ...own.legend },
      ...Object.fromEntries(axes.map((key) => [key, axis(own[key], style)])),
    };
  };

  const config = (narrow) => ({
    responsive: true,
    displaylogo: false,
    displayModeBar: narrow ? false : "hover",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  });

  const chosen = { view: "raw", updates: null };

  const shown = (trace) => {
    const view = trace.meta?.view;
    return view === undefined || chosen.view === "both" || chosen.view === view;
  };

  const ranged = (layout) => {
    if (layout.meta?.linked !== "updates") return layout;
    const range = chosen.updates ? { range: [...chosen.updates], autorange: false } : { autorange: true };
    return { ...layout, xaxis: { ...layout.xaxis, ...range } };
  };

  const draw = () => {
    const style = getComputedStyle(root);
    const narrow = window.innerWidth < 740;
    return Promise.all(
      places.map((place) => {
        const figure = figures[place.dataset.figure];
        place.style.height = figure.layout.height + "px";
        const data = painted(figure.data, style).map((trace) => ({ ...trace, visible: shown(trace) }));
        return Plotly.react(place, data, ranged(layoutOf(figure, style, narrow)), config(narrow));
      }),
    ).then((drawn) => (root.dataset.drawn = String(drawn.length)));
  };

  const ready = draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("(max-width: 739px)").addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { root.dataset.paper = ""; draw(); });
  window.addEventListener("afterprint", () => { delete root.dataset.paper; draw(); });
  const linked = places.filter((place) => figures[place.dataset.figure].layout.meta?.linked === "updates");
  return { chosen, draw, linked, ready };
})();
