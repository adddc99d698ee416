// Draws the charts from the data beside them, sorts tables, copies the command. Nothing here reads text as mark-up.
"use strict";

const touch = matchMedia("(pointer: coarse)").matches;
for (const place of document.querySelectorAll(".chart")) {
  const drawn = JSON.parse(place.querySelector("script").textContent);
  place.replaceChildren();
  drawn.layout.dragmode = touch ? false : "zoom";
  drawn.layout.autosize = true;
  if (place.clientWidth < 500) {
    for (const trace of drawn.data) {
      if (trace.colorbar) {
        Object.assign(trace.colorbar, { orientation: "h", x: 0.5, y: 1.02, yanchor: "bottom", len: 1 });
        trace.colorbar.title.side = "top";
      }
    }
    for (const axis of [drawn.layout.xaxis, drawn.layout.yaxis]) {
      axis.tickfont = { size: 10 };
    }
  }
  Plotly.newPlot(place, drawn.data, drawn.layout, { displayModeBar: false, responsive: true });
}

function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const value = (row) => {
    const cell = row.cells[column];
    return cell.dataset.rank === undefined ? cell.textContent : Number(cell.dataset.rank);
  };
  const before = (one, other) => {
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    return direction * (typeof one === "number" ? one - other : one < other ? -1 : one > other ? 1 : 0);
  };
  const rows = [...body.rows].sort((one, other) => before(value(one), value(other)));
  body.append(...rows);
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const rising = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    sortBy(head.closest("table"), head.cellIndex, rising ? 1 : -1);
  });
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
  });
}

addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});
