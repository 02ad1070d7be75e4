// Live updates: fetches the page every few seconds while it is visible and applies the changes.
// Only one request runs at a time, and slow responses lower the frequency.

import { morph } from "./morph.js";

const EVERY = 5000; // ms
const SHARE = 20; // a page that takes 1 s is fetched every 20 s
const LATE = 30000; // ms until a request is aborted

export function keepLive(main, state) {
  let timer;
  let request; // the latest one; responses to earlier requests are ignored

  async function refresh() {
    clearTimeout(timer);
    request?.abort();
    const mine = (request = new AbortController());
    const begun = performance.now();
    const fresh = await ask(mine);
    if (mine !== request) return;
    if (fresh) show(fresh);
    tell(Boolean(fresh) && isCurrent(main));
    plan(Math.max(EVERY, SHARE * (performance.now() - begun)));
  }

  function show(fresh) {
    morph(main, fresh);
    main.dispatchEvent(new Event("fresh"));
  }

  function tell(isLive) {
    const text = isLive ? "live" : "not live";
    state.hidden = false;
    if (state.textContent !== text) state.textContent = text; // screen readers announce changes
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
  tell(isCurrent(main));
  plan(EVERY);
  return { refresh };
}

// Returns false if nsqadmin could not query the cluster.
function isCurrent(main) {
  return main.dataset.live === "current";
}

// Returns the <main> of the current page, also for error statuses (the topic may be gone). Returns
// undefined if nsqadmin does not answer, or a proxy answers instead.
async function ask(request) {
  const limit = setTimeout(() => request.abort(), LATE);
  try {
    const answer = await fetch(location.href, { signal: request.signal });
    // A redirect, for example to the log-in page, needs a full page load.
    if (answer.redirected) location.reload();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return page.querySelector("main[data-live]") ?? undefined;
  } catch {
    return undefined;
  } finally {
    clearTimeout(limit);
  }
}
