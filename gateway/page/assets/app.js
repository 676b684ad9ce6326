// The page is made by the gateway; this puts in what the gateway sends, and counts down.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const now = byId("now"), live = byId("live");
  const most = 100;

  // The gateway says how long is left when it answers; from then on this clock counts.
  const count = (root) => {
    const at = performance.now();
    for (const e of root.querySelectorAll("[data-left]")) e.ends = at + Number(e.dataset.left);
  };
  const text = (ms) => {
    if (ms < 60000) return (ms / 1000).toFixed(1) + "s";
    const s = Math.floor(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60);
    return (h ? h + "h" : "") + (m % 60) + "m" + (s % 60) + "s";
  };
  const tick = () => {
    for (const e of now.querySelectorAll("[data-left]")) {
      const left = Math.max(0, e.ends - performance.now());
      e.textContent = text(left);
      e.classList.toggle("soon", left < 5000);
    }
  };

  // What is shown anew keeps the reader's place: the focus, and how far a table was scrolled.
  const replace = (html) => {
    const focus = document.activeElement && document.activeElement.dataset.resource;
    const scrolled = [...now.querySelectorAll(".scroll")].map((e) => [e.scrollLeft, e.scrollTop, e === document.activeElement]);
    now.innerHTML = html;
    now.querySelectorAll(".scroll").forEach((e, i) => {
      if (!scrolled[i]) return;
      [e.scrollLeft, e.scrollTop] = scrolled[i];
      if (scrolled[i][2]) e.focus({ preventScroll: true });
    });
    if (focus !== undefined) {
      const again = [...now.querySelectorAll("a[data-resource]")].find((e) => e.dataset.resource === focus);
      if (again) again.focus({ preventScroll: true });
    }
    count(now);
    tick();
  };

  const add = (table) => (html) => {
    const row = document.createElement("template");
    row.innerHTML = html;
    table.prepend(row.content);
    while (table.rows.length > most) table.rows[table.rows.length - 1].remove();
  };

  const query = new URLSearchParams({ prefix: document.body.dataset.prefix, after: document.body.dataset.last });
  const source = new EventSource("/page/events?" + query);
  source.addEventListener("now", (e) => {
    live.textContent = "Live.";
    replace(e.data);
  });
  for (const id of ["feed", "refused"]) {
    const to = add(byId(id));
    source.addEventListener(id, (e) => to(e.data));
  }
  source.onerror = () => {
    live.textContent = source.readyState === EventSource.CLOSED ? "Not live any more: load the page again." : "The connection is lost; trying again.";
  };
  count(now);
  setInterval(tick, 200);
})();
