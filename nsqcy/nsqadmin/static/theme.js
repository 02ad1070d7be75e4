// Light, dark, or as the system has it: what this browser's user chose is remembered here. A plain
// script in the head, so that nothing is drawn in the wrong colours first.

"use strict";

(() => {
  const KEY = "nsqadmin-theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const SHOWN = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };

  const remembered = () => {
    try {
      const found = localStorage.getItem(KEY);
      return found in NEXT ? found : "auto";
    } catch {
      return "auto"; // no storage here: every page begins as the system has it
    }
  };

  const remember = (theme) => {
    try {
      localStorage.setItem(KEY, theme);
    } catch {}
  };

  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = SHOWN[theme];
      button.title = "Colours: " + theme;
      button.hidden = false;
    }
  };

  apply(remembered());
  addEventListener("DOMContentLoaded", () => {
    apply(remembered());
    document.getElementById("theme").addEventListener("click", () => {
      const theme = NEXT[document.documentElement.dataset.theme];
      remember(theme);
      apply(theme);
    });
  });
  // Another tab has changed it.
  addEventListener("storage", () => apply(remembered()));
})();
