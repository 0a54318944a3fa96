"use strict";
{
  // A cell's own value, the number in its first line, or its text; undefined where there is none.
  const valueOf = (cell) => {
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = (cell.firstChild ? cell.firstChild.textContent : "").trim();
    if (/^[+-]?\d[\d.,]*(e[+-]?\d+)?\s*%?$/i.test(text)) return parseFloat(text.replaceAll(",", ""));
    return text === "–" || text === "" ? undefined : cell.textContent.trim().toLowerCase();
  };

  const compare = (one, other) => {
    if (typeof one === typeof other && typeof one === "number") return one - other;
    return String(one).localeCompare(String(other), undefined, { numeric: true });
  };

  const sort = (table, column, falling) => {
    table.classList.add("sorted");
    for (const body of table.tBodies) {
      if (body.classList.contains("pinned")) continue;
      const rows = [...body.rows].filter((row) => !row.classList.contains("null"));
      const keyed = rows.map((row) => [valueOf(row.cells[column]), row]);
      keyed.sort(([one], [other]) => {
        if (one === undefined || other === undefined) return (one === undefined) - (other === undefined);
        return falling ? compare(other, one) : compare(one, other);
      });
      body.append(...keyed.map(([, row]) => row));
    }
  };

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      head.scope = "col";
      if (head.title) {
        button.dataset.tip = head.title;
        head.removeAttribute("title");
      }
      if (head.dataset.term) button.dataset.term = head.dataset.term;
      button.addEventListener("click", () => {
        // Numbers fall first, words rise first.
        const before = head.getAttribute("aria-sort");
        const first = head.classList.contains("text") ? "ascending" : "descending";
        const second = first === "ascending" ? "descending" : "ascending";
        const now = before === first ? second : first;
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", now);
        sort(table, column, now === "descending");
      });
    });
  }

  for (const tools of document.querySelectorAll("[data-filters]")) {
    const table = document.getElementById(tools.dataset.filters);
    const [search, read] = tools.querySelectorAll("input");
    const rows = [...table.tBodies].filter((b) => !b.classList.contains("pinned")).flatMap((b) => [...b.rows]);
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = `${row.cells[0].textContent} ${row.cells[1].textContent}`.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word)) || (read.checked && !(Number(row.dataset.read) > 0));
        shown += !row.hidden;
      }
      const whole = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
      tools.querySelector("output").value = whole;
    };
    search.addEventListener("input", filter);
    read.addEventListener("change", filter);
    filter();
  }
}
