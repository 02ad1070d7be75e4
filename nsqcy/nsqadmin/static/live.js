// Keeps what is on a page as it is now: the page is asked for again every few seconds, while it is
// seen, and made like the answer. One request at a time, and rarely where answers take long.

import { morph } from "./morph.js";

const EVERY = 5000; // ms
const SHARE = 20; // an answer that takes 1 s is asked for every 20 s
const LATE = 30000; // ms after which it is not waited for any longer

export function keepLive(main, state) {
  let timer;
  let request;

  async function refresh() {
    clearTimeout(timer);
    request?.abort();
    const mine = (request = new AbortController());
    const begun = performance.now();
    try {
      const limit = AbortSignal.timeout(LATE);
      const answer = await fetch(location.href, { signal: AbortSignal.any([mine.signal, limit]) });
      if (answer.redirected) return location.reload(); // to where somebody has to log in, say
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const text = await answer.text();
      if (mine !== request) return;
      const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      morph(main, fresh);
      main.dispatchEvent(new Event("fresh"));
      show(true);
    } catch {
      if (mine !== request) return; // another one has taken its place
      show(false);
    }
    request = undefined;
    plan(Math.max(EVERY, SHARE * (performance.now() - begun)));
  }

  function show(isLive) {
    state.hidden = false;
    state.textContent = isLive ? "live" : "not live";
    state.classList.toggle("old", !isLive);
  }

  function plan(wait) {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(refresh, wait);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else refresh();
  });
  show(true);
  plan(EVERY);
  return { refresh };
}
