"use strict";
// Draws the charts, moves between rounds, and sorts tables.
const charts = JSON.parse(document.getElementById("charts").textContent);
const drawn = document.querySelectorAll(".chart");
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };

// The legend has as many columns as fit, and the figure grows by its rows.
function fit(div) {
  const names = div.data.filter((trace) => trace.showlegend !== false && trace.visible !== false);
  if (!div.layout.legend || names.length < 2) return;
  const longest = Math.max(...names.map((trace) => trace.name.length));
  const width = div.clientWidth - div.layout.margin.l - div.layout.margin.r;
  const columns = Math.max(1, Math.floor(width / (50 + 7.5 * longest)));
  const rows = Math.ceil(names.length / columns);
  div.plain = div.plain || div.layout.height;
  Plotly.relayout(div, {
    "legend.entrywidth": Math.floor(width / columns) - 50,
    height: div.plain + 20 * rows,
    "margin.b": 70 + 20 * rows,
    "legend.y": -65 / (div.plain - 80 - div.layout.margin.t),
  });
}

for (const div of drawn) {
  const { data, layout } = charts[div.id];
  Plotly.newPlot(div, data, layout, config).then(() => fit(div));
}

const resize = () => drawn.forEach((div) => { Plotly.Plots.resize(div); fit(div); });
window.addEventListener("resize", resize);
window.addEventListener("beforeprint", resize);
window.addEventListener("afterprint", resize);

for (const slider of document.querySelectorAll("input[type=range]")) {
  const rounds = JSON.parse(slider.dataset.rounds);
  slider.addEventListener("input", () => {
    const round = rounds[slider.value];
    slider.nextElementSibling.textContent = `round ${round}`;
    for (const div of drawn) {
      if (div.data.some((trace) => trace.meta === round)) {
        Plotly.restyle(div, "visible", div.data.map((trace) => trace.meta === undefined || trace.meta === round));
      }
    }
  });
}

const number = (text) => parseFloat(text.replace(/^[<\s]+/, "").replace("–", "NaN"));
for (const button of document.querySelectorAll("table.sortable button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = button.closest("table").tBodies[0], column = head.cellIndex;
    const up = head.getAttribute("aria-sort") === "descending" || (column === 0 && !head.hasAttribute("aria-sort"));
    const text = (row) => row.cells[column].textContent;
    const order = (a, b) => {
      const [x, y] = [number(text(a)), number(text(b))];
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || text(a).localeCompare(text(b)) * (up ? 1 : -1);
      return (x - y) * (up ? 1 : -1);
    };
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...[...body.rows].sort(order));
  });
}
