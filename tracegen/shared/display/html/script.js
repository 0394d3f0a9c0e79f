// What a page can do beyond being read: sort and filter tables, fold, change its theme, copy.
// Without it everything is there all the same.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.documentElement;

  // ---- theme
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem("moereplay-theme", value);
      return localStorage.getItem("moereplay-theme");
    } catch {
      return value; // a file may have no place to remember it
    }
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const named = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  const kept = remembered();
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    named();
  });
  dark.addEventListener("change", named);
  named();

  // ---- folding
  const sections = all("details.section");
  const fold = document.getElementById("fold");
  const areAllOpen = () => sections.every((one) => one.open);
  const titled = () => { fold.textContent = areAllOpen() ? "Fold all" : "Open all"; };
  fold.addEventListener("click", () => {
    const open = !areAllOpen();
    for (const one of sections) one.open = open;
  });
  for (const one of sections) one.addEventListener("toggle", titled);
  titled();
  const visit = () => {
    const target = document.getElementById(location.hash.slice(1));
    const folded = target && target.closest("details.section:not([open])");
    if (!folded) return;
    folded.open = true; // where a browser does not unfold by itself what it is led into
    target.scrollIntoView();
  };
  addEventListener("hashchange", visit);
  visit();
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = sections.filter((one) => !one.open);
    for (const one of folded) { one.dataset.folded = ""; one.open = true; } // for browsers that print no folded charts
  });
  addEventListener("afterprint", () => {
    for (const one of folded) { delete one.dataset.folded; one.open = false; }
  });

  // ---- the command
  // A line of a command ends between its words, not at a hyphen within one; the file has it as one text.
  for (const code of all(".command code")) {
    const words = code.textContent.split(" ").map((word) => {
      const span = document.createElement("span");
      span.textContent = word;
      return span;
    });
    code.replaceChildren(...words.flatMap((span, k) => (k ? [" ", span] : [span])));
  }

  for (const button of all(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // ---- charts follow tables: rows of the same names leave, and come in the same order
  const nameOf = (row) => row.cells[0].textContent;
  const stacks = all("svg[data-pitch]").map((svg) => {
    const rows = all(".row", svg);
    const tops = rows.map((row) => Number(/ ([-.\d]+)\)/.exec(row.getAttribute("transform"))[1]));
    return { svg, rows, tops, pitch: Number(svg.dataset.pitch), box: svg.viewBox.baseVal.height };
  });
  const hidden = new Map(); // table -> names of which no row is left
  const order = new Map(); // name -> place in the table that was sorted last
  // Rows that stand for steps, as in a waterfall, stay.
  const followers = all("[data-name]").filter((one) => !one.matches(".row") || one.closest("[data-pitch]"));
  const follow = () => {
    const gone = new Set([...hidden.values()].flatMap((names) => [...names]));
    for (const one of followers) one.classList.toggle("gone", gone.has(one.dataset.name));
    for (const { svg, rows, tops, pitch, box } of stacks) {
      const shown = rows.filter((row) => !gone.has(row.dataset.name));
      if (shown.every((row) => order.has(row.dataset.name)))
        shown.sort((a, b) => order.get(a.dataset.name) - order.get(b.dataset.name));
      shown.forEach((row, k) => row.setAttribute("transform", `translate(0 ${tops[k]})`));
      const height = box - pitch * (rows.length - shown.length);
      svg.setAttribute("viewBox", `0 0 ${svg.viewBox.baseVal.width} ${height}`);
    }
  };

  // ---- tables
  const collator = new Intl.Collator(undefined, { numeric: true });
  const compare = (a, b) => {
    if (a.v === undefined || b.v === undefined) return collator.compare(a.text, b.text);
    return a.v - b.v;
  };
  const sort = (table, place, way) => {
    const body = table.tBodies[0];
    const rows = table.original.map((row, k) => {
      const cell = row.cells[place];
      const v = cell.dataset.v === undefined ? undefined : Number(cell.dataset.v);
      const isNumber = table.tHead.rows[0].cells[place].classList.contains("n");
      return { row, k, v, text: cell.textContent, isEmpty: isNumber && v === undefined };
    });
    if (way) {
      rows.sort((a, b) => a.isEmpty - b.isEmpty || way * compare(a, b) || a.k - b.k);
    }
    body.append(...rows.map((one) => one.row));
    order.clear();
    if (way) rows.forEach(({ row }, k) => order.has(nameOf(row)) || order.set(nameOf(row), k));
    follow();
  };
  for (const table of all("table.sortable")) {
    table.original = [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: null }[head.ariaSort];
        const state = next === undefined ? "ascending" : next;
        for (const one of heads) one.removeAttribute("aria-sort");
        if (state) head.setAttribute("aria-sort", state);
        sort(table, place, { ascending: 1, descending: -1 }[state] || 0);
      });
    });
  }
  for (const label of all(".filter")) {
    label.hidden = false;
    const input = label.querySelector("input");
    const count = label.querySelector("output");
    const table = document.getElementById(input.getAttribute("aria-controls"));
    const texts = new Map(table.original.map((row) => [row, row.textContent.toLowerCase()]));
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const names = new Set();
      let left = 0;
      for (const [row, text] of texts) {
        const isShown = words.every((word) => text.includes(word));
        row.classList.toggle("gone", !isShown);
        left += isShown;
        if (!isShown) names.add(nameOf(row));
      }
      for (const [row] of texts) if (!row.classList.contains("gone")) names.delete(nameOf(row));
      hidden.set(table, names);
      count.textContent = words.length ? `${left} of ${texts.size}` : "";
      follow();
    });
  }

  // ---- what is said of what is pointed at
  const tip = document.createElement("div");
  tip.className = "tip gone";
  tip.setAttribute("aria-hidden", "true"); // the headings' titles and the charts' numbers say it
  document.querySelector(".moereplay").append(tip);
  const said = (element) => {
    for (let one = element; one && one !== document.body; one = one.parentElement) {
      if (one.saying !== undefined) return one.saying;
      const title = [...one.children].find((child) => child.localName === "title");
      if (title) {
        const row = one.closest(".row");
        one.saying = (row ? `${row.dataset.name}\n` : "") + title.textContent;
        title.remove(); // the browser would show it too, later
        return one.saying;
      }
      if (one.dataset && one.dataset.says) {
        one.removeAttribute("title");
        one.setAttribute("aria-description", one.dataset.says);
        return one.dataset.says;
      }
    }
    return "";
  };
  const show = (text, x, y) => {
    tip.classList.toggle("gone", !text);
    if (!text) return;
    const [first, ...others] = text.split("\n");
    const head = document.createElement("b");
    head.textContent = first;
    tip.replaceChildren(...(others.length ? [head, `\n${others.join("\n")}`] : [first]));
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
  };
  addEventListener("pointermove", (event) => show(said(event.target), event.clientX, event.clientY));
  addEventListener("pointerleave", () => show(""));
  addEventListener("scroll", () => show(""), { passive: true });
  addEventListener("focusin", (event) => {
    const head = event.target.closest("th[data-says]");
    const box = event.target.getBoundingClientRect();
    show(head ? said(head) : "", box.left, box.bottom - 10);
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") show(""); });

  for (const button of all("button.tool")) button.hidden = false;
})();
