// Theme switch: light, dark or system. The choice is stored in the browser. A plain script in the
// head, so that the page never flashes in the wrong colours.

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
      return "auto"; // storage is unavailable: follow the system
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
  // Another tab may change the theme.
  addEventListener("storage", () => apply(remembered()));
})();
