"use strict";
// Filters the table of all claims. Without scripts the whole table is simply there.
const form = document.getElementById("filter");
const rows = [...document.querySelectorAll("table.claims tbody tr")];

function apply() {
  const { verdict, kind, text, shown } = form.elements;
  const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const content = row.textContent.toLowerCase();
    row.hidden =
      (verdict.value && row.dataset.verdict !== verdict.value) ||
      (kind.value && row.dataset.kind !== kind.value) ||
      !words.every((word) => content.includes(word));
    count += row.hidden ? 0 : 1;
  }
  shown.value = `${count} of ${rows.length}`;
}

form.hidden = false;
form.addEventListener("input", apply);
form.addEventListener("submit", (event) => event.preventDefault());
for (const link of document.querySelectorAll("a[data-verdict]")) {
  link.addEventListener("click", () => {
    form.reset();
    form.elements.verdict.value = link.dataset.verdict;
    apply();
  });
}
for (const link of document.querySelectorAll(".matrix a")) {
  link.addEventListener("click", () => {
    form.reset();
    apply();
  });
}
apply();

// Plain tables sort by the column whose heading is pressed, again for the other way round.
for (const table of document.querySelectorAll("table.plain")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const order = (a, b) => a.localeCompare(b, "en", { numeric: true });
    const compare = (a, b) => (Number(a) - Number(b) || order(a, b));
    button.addEventListener("click", () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      const sorted = [...table.tBodies[0].rows].sort((a, b) => sign * compare(key(a), key(b)));
      table.tBodies[0].append(...sorted);
    });
  });
}
