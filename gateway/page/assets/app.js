// The page is made by the gateway; this puts in what the gateway sends, and counts down.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const now = byId("now"), live = byId("live");
  const most = 100;
  const quiet = 15000; // the gateway sends what is held every few seconds

  let source, heard = performance.now(), after = document.body.dataset.last;
  const silence = () => performance.now() - heard;

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
      if (silence() >= quiet) { // it may have been renewed, or released
        e.textContent = "not known";
        e.classList.remove("soon");
        continue;
      }
      const left = Math.max(0, e.ends - performance.now());
      e.textContent = text(left);
      e.classList.toggle("soon", left < 5000);
    }
  };

  // What is shown again keeps the reader's place: the focus, and how far a table was scrolled.
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

  const tables = { feed: add(byId("feed")), refused: add(byId("refused")) };
  const open = () => {
    const one = source = new EventSource("/page/events?" + new URLSearchParams({ prefix: document.body.dataset.prefix, after }));
    const on = (name, show) => one.addEventListener(name, (e) => {
      if (one !== source) return;
      heard = performance.now();
      after = e.lastEventId || after;
      show(e.data);
    });
    on("now", (html) => {
      live.textContent = "Live.";
      replace(html);
    });
    for (const [name, put] of Object.entries(tables)) on(name, put);
    one.onerror = () => {
      if (one !== source) return;
      live.textContent = one.readyState === EventSource.CLOSED ? "Not live any more: load the page again." : "The connection is lost; trying again.";
    };
  };

  // A gateway that stands still, or a network that is cut, ends no connection.
  let due = quiet;
  const listen = () => {
    if (silence() < quiet) {
      due = quiet;
    } else if (silence() >= due && source.readyState !== EventSource.CLOSED) {
      due = silence() + quiet;
      live.textContent = "No word from the gateway for " + Math.floor(silence() / 1000) + " s; trying again.";
      source.close();
      open();
    }
  };

  open();
  count(now);
  setInterval(() => {
    listen();
    tick();
  }, 200);
})();
