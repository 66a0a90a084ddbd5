"use strict";
// Search, filters and sorting. Without scripts the pages and their whole tables are simply there.
const root = document.currentScript.dataset.root;

// Words that must all occur, in any order.
const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
const holds = (text, words) => words.every((word) => text.includes(word));

// Claims: by verdict, kind and words. claims.html?verdict=fails,undecided begins with these.
function filterClaims(form) {
  const table = form.nextElementSibling.querySelector("table");
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
  const { verdict, kind, text, shown } = form.elements;
  const apply = () => {
    const words = wordsOf(text.value);
    const verdicts = verdict.value.split(",");
    let count = 0;
    for (const [row, content] of rows) {
      row.hidden =
        (verdict.value && !verdicts.includes(row.dataset.verdict)) ||
        (kind.value && row.dataset.kind !== kind.value) ||
        !holds(content, words);
      count += row.hidden ? 0 : 1;
    }
    shown.value = `${count} of ${rows.length}`;
  };
  const choose = (query) => {
    form.reset();
    verdict.value = new URLSearchParams(query).get("verdict") ?? "";
    apply();
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const link of document.querySelectorAll('a[href^="?verdict="]')) {
    link.addEventListener("click", () => choose(link.search));
  }
  // A row that a link leads to must not be filtered away.
  const arrive = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (row?.hidden) {
      choose("");
      row.scrollIntoView();
    }
  };
  addEventListener("hashchange", arrive);
  choose(location.search);
  arrive();
}

// Tables sort by the column whose heading is pressed, again for the other way round.
function sortTable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const isNumber = (text) => text.trim() !== "" && !Number.isNaN(Number(text));
  const order = (a, b) => a.localeCompare(b, "en", { numeric: true });
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
      const numeric = head.classList.contains("num");
      // What is absent comes last, either way round.
      const last = (text) => numeric && !isNumber(text);
      rows.sort(([a], [b]) =>
        last(a) || last(b)
          ? last(a) - last(b)
          : sign * (numeric ? Number(a) - Number(b) : order(a, b)),
      );
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

// Search: its index is fetched as a script when first needed, since pages from a folder may not
// read other files.
function startSearch(box) {
  const input = box.querySelector("input");
  const found = box.querySelector("#found");
  const [count, list] = [found.querySelector("output"), found.querySelector("ul")];
  const most = 30;

  const load = () => {
    if (document.getElementById("index")) return;
    const script = document.createElement("script");
    script.id = "index";
    script.src = `${root}assets/search.js`;
    script.addEventListener("load", show);
    document.head.append(script);
  };
  const entry = ([kind, title, more, path]) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    const small = document.createElement("small");
    link.href = root + path;
    link.textContent = title;
    small.textContent = `${kind} · ${more}`;
    link.append(small);
    item.append(link);
    return item;
  };
  const show = () => {
    const words = wordsOf(input.value);
    found.hidden = !words.length;
    if (!words.length || !window.searchIndex) return;
    const hits = window.searchIndex
      .filter((one) => holds(one.slice(0, 3).join(" ").toLowerCase(), words))
      .sort((a, b) => holds(b[1].toLowerCase(), words) - holds(a[1].toLowerCase(), words));
    count.value = hits.length > most ? `${most} of ${hits.length} found` : `${hits.length} found`;
    list.replaceChildren(...hits.slice(0, most).map(entry));
  };

  box.hidden = false;
  input.addEventListener("focus", load);
  input.addEventListener("input", show);
  box.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      input.value = "";
      found.hidden = true;
      input.focus();
    } else if (event.key === "Enter" && at < 0 && links.length && !found.hidden) {
      links[0].click();
    } else if (step && links.length) {
      event.preventDefault();
      (links[at + step] ?? (step < 0 ? input : links[at])).focus();
    }
  });
  box.addEventListener("focusout", (event) => {
    if (!box.contains(event.relatedTarget)) found.hidden = true;
  });
  list.addEventListener("click", () => (found.hidden = true));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      input.focus();
    }
  });
}

document.querySelectorAll("form.filter").forEach(filterClaims);
document.querySelectorAll("table.sortable").forEach(sortTable);
startSearch(document.querySelector("nav search"));
