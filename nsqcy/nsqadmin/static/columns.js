// Column chooser: hides columns of wide tables. The choice is stored in the browser, by the table's
// caption and the column's title.

const KEY = "nsqadmin-columns";

export function chooseColumns(main) {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);

  function apply() {
    const hidden = remembered();
    const rules = [];
    for (const chooser of main.querySelectorAll("details.columns")) {
      const table = chooser.dataset.table;
      chooser.hidden = false;
      [...chooser.querySelectorAll("label")].forEach((label, index) => {
        const isHidden = hidden[table]?.includes(titleOf(label)) ?? false;
        label.firstElementChild.checked = !isHidden;
        if (isHidden) rules.push(rule(table, index + 2)); // the first column stays
      });
    }
    sheet.replaceSync(rules.join("\n"));
  }

  main.addEventListener("change", (event) => {
    const chooser = event.target.closest("details.columns");
    if (!chooser) return;
    const labels = [...chooser.querySelectorAll("label")];
    const off = labels.filter((label) => !label.firstElementChild.checked).map(titleOf);
    remember({ ...remembered(), [chooser.dataset.table]: off });
    apply();
  });
  main.addEventListener("fresh", apply); // the columns may have changed
  addEventListener("storage", apply); // another tab may change the choice
  apply();
}

function rule(table, place) {
  const box = `.table[aria-label="${CSS.escape(table)}"] > table > *`;
  return `${box} > tr:not(.more) > :nth-child(${place}) { display: none !important; }`;
}

const titleOf = (label) => label.textContent.trim();

function remembered() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {}; // storage is unavailable, or contains something else
  }
}

function remember(hidden) {
  try {
    localStorage.setItem(KEY, JSON.stringify(hidden));
  } catch {}
}
