package page_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/stack/stacktest"
	"github.com/fencegate/fencegate/internal/testenv"
)

// One browser serves all views, because its start takes longer than a view.
func TestThePageInABrowser(t *testing.T) {
	t.Parallel()
	program, err := stacktest.New(t).Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := startChromium(t)
	b.program = program
	for name, test := range map[string]func(t *testing.T, b chromium){
		"who holds what and who was refused is shown live": showsLive,
		"the search takes the beginning of names":          searches,
		"a resource is revoked after a question":           revokes,
		"the keyboard is enough":                           revokesByKeyboard,
		"who logs in sees what is theirs until they leave": logsIn,
		"PostgreSQL that is away is said":                  saysAway,
		"a frozen gateway is reported":                     saysSilence,
		"a screen reader hears names and headings":         readsAloud,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, b)
		})
	}
}

// counts holds when the shortest deadline has counted down in the same element.
const counts = `(() => {
  const e = [...document.querySelectorAll("#held .left")].find((e) => /^[0-9.]+s$/.test(e.textContent));
  if (!e) return false;
  if (window.seen !== e) { window.seen = e; window.first = parseFloat(e.textContent); return false; }
  return parseFloat(e.textContent) < window.first;
})()`

func showsLive(t *testing.T, browser chromium) {
	pg := testenv.Postgres(t)
	guard(t, pg)
	nodes := testenv.Redis(t, 3)
	g := browser.serve(t, stack.GatewayConfig{URL: pg.GatewayURL, Redis: nodes.Addrs, Flags: []string{"--redis-prefix", nodes.Prefix}})
	stale := g.hold("", "orders/1001", "worker A", 10*time.Minute)
	g.release(stale)
	b := browser.open(t, g.base, "/")
	b.live()
	b.shows("#held", "Nothing is held.")
	b.run(`window.loaded = "once"`)

	g.hold("", "invoices/2026-11", "nightly run", 50*time.Minute)
	g.hold("", "orders/1001", "worker B", 40*time.Second)
	g.hold("", "orders/1002", "worker C", 4*time.Minute)
	b.shows("#held tbody tr", "orders/1001", "worker B", "orders/1002", "invoices/2026-11", "49m")
	b.until("the deadlines count down", counts)
	g.writeStale(pg, stale)
	b.shows("#refused tr.kind-refused", "ZF001", "orders/1001", "UPDATE", "invoices")
	b.want("the newest event is the first", `document.querySelector("#refused tr").matches(".kind-refused")`)
	b.want("nothing was loaded again", `window.loaded === "once"`)
	b.shows("#now", "admitted", "redis, ok")
	takePictures(b)
}

func searches(t *testing.T, browser chromium) {
	g := browser.alone(t)
	g.hold("", "orders/1001", "worker A", 10*time.Minute)
	g.hold("", "invoices/7", "worker B", 10*time.Minute)
	b := browser.open(t, g.base, "/")
	b.shows("#held", "orders/1001", "invoices/7")
	b.do(chromedp.SendKeys(chromedp.CSS("#prefix"), "inv"+kb.Enter))
	b.until("the search is in the address", `location.search === "?prefix=inv"`)
	b.live()
	b.shows("#held", "invoices/7")
	g.hold("", "invoices/<b>8&", `<script>alert("x")</script>`, 10*time.Minute)
	b.shows("#held", "invoices/<b>8&", `<script>alert("x")</script>`)
	b.want("others are left out", `!document.body.innerText.includes("orders/1001")`)
	b.click("form.search a")
	b.shows("#held", "orders/1001")
}

func revokes(t *testing.T, browser chromium) {
	g := browser.alone(t)
	held := g.hold("", "orders/1001", "worker A", 10*time.Minute)
	b := browser.open(t, g.base, "/")
	b.live()
	b.click("#held a.revoke")
	b.shows("h1", "Revoke orders/1001?")
	b.shows("dl", "worker A", held.Token.String())
	b.click("main a") // Cancel
	b.shows("#held", "worker A")
	b.live()

	b.click("#held a.revoke")
	b.shows("button.danger", "Revoke token "+held.Token.String()+" of worker A")
	b.click("button.danger")
	b.shows("#held", "Nothing that begins with “orders/1001” is held.")
	b.shows("#feed tr.kind-revoked", "orders/1001")
	if _, err := g.api("").Renew(t.Context(), held.Handle, time.Minute); err == nil {
		t.Error("the lease that was revoked is renewed")
	}
}

func revokesByKeyboard(t *testing.T, browser chromium) {
	g := browser.alone(t)
	g.hold("", "orders/1001", "worker A", 10*time.Minute)
	g.hold("", "orders/1002", "worker B", 10*time.Minute)
	b := browser.open(t, g.base, "/")
	b.live()
	b.press(kb.Tab)
	b.want("the first stop is the link that skips", `document.activeElement.matches(".skip") && document.activeElement.getBoundingClientRect().left >= 0`)
	b.tabTo(`a.revoke[data-resource="orders/1002"]`)
	b.want("the focus is seen", `getComputedStyle(document.activeElement).outlineStyle === "solid"`)
	b.run(`window.before = document.querySelector("#held")`)
	b.until("the list of held resources is replaced", `!window.before.isConnected`)
	b.want("the focus stays where it was", `document.activeElement.matches('a.revoke[data-resource="orders/1002"]')`)
	b.press(kb.Enter)
	b.shows("h1", "Revoke orders/1002?")
	b.until("the safe choice has the focus", `document.activeElement.innerText === "Cancel"`)
	b.press(kb.Tab)
	b.want("Tab leads to the other choice", `document.activeElement.matches("button.danger")`)
	b.press(kb.Enter)
	b.shows("#feed tr.kind-revoked", "orders/1002")
	b.visit("/")
	b.shows("#held", "orders/1001")
	b.want("it is revoked", `!document.querySelector("#held").innerText.includes("orders/1002")`)
}

const principals = `principals:
  - {name: ops, tokens: [%s], allow: [{resources: "*", verbs: [acquire, inspect, revoke]}]}
  - {name: shop, tokens: [%s], allow: [{resources: "orders/*", verbs: [inspect]}]}
`

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func logsIn(t *testing.T, browser chromium) {
	file := filepath.Join(t.TempDir(), "principals.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, principals, digest("token of ops"), digest("token of shop")), 0o600); err != nil {
		t.Fatal(err)
	}
	g := browser.alone(t, "--principals", file)
	g.hold("token of ops", "orders/1001", "worker A", 10*time.Minute)
	g.hold("token of ops", "invoices/7", "worker B", 10*time.Minute)
	b := browser.open(t, g.base, "/")
	b.until("the token is asked for", `document.activeElement.matches("#token")`)
	b.want("nothing is shown before", `!document.documentElement.outerHTML.includes("orders/1001")`)
	b.press("token of nobody" + kb.Enter)
	b.shows(".alert", "This token is not one of the gateway's.")

	for name, sees := range map[string]bool{"shop": false, "ops": true} {
		b.until("the form has the focus", `document.activeElement.matches("#token")`)
		b.press("token of " + name + kb.Enter)
		b.shows("#connection", "Logged in as "+name+".")
		b.live()
		b.shows("#held", "orders/1001")
		b.want("what it may inspect is shown", fmt.Sprintf(`document.body.innerText.includes("invoices/7") === %v`, sees))
		b.want("what it may revoke can be revoked", fmt.Sprintf(`Boolean(document.querySelector("a.revoke")) === %v`, sees))
		b.want("the token is nowhere", `!(location.href + document.documentElement.outerHTML + document.cookie).includes("token of")`)
		b.wantHidden()
		b.click("header button")
		b.until("the form is there again", `document.querySelector("#token") && !document.querySelector("#held")`)
		b.visit("/")
	}
	b.do(chromedp.NavigateBack())
	b.until("the way back shows nothing", `document.querySelector("#token") && !document.body.innerText.includes("orders/1001")`)
}

// wantHidden checks the session's cookie, which must be hidden from scripts and from other sites.
func (b *tab) wantHidden() {
	b.t.Helper()
	b.want("scripts see no cookie", `document.cookie === ""`)
	found, err := chromedp.Call(b.ctx, network.GetCookies, network.GetCookiesParams{})
	if err != nil || len(found.Cookies) != 1 || !found.Cookies[0].HTTPOnly || found.Cookies[0].SameSite != network.CookieSameSiteStrict {
		b.t.Errorf("the session's cookie: %+v, %v", found, err)
	}
}

// The gateway stands still and sends nothing, but its connections stay open.
func saysSilence(t *testing.T, browser chromium) {
	g := browser.alone(t)
	b := browser.open(t, g.base, "/")
	b.live()
	g.hold("", "orders/1001", "worker A", 10*time.Minute)
	b.shows("#feed tr", "orders/1001")
	b.until("the deadlines are shown", `/^9m/.test(document.querySelector("#held .left")?.textContent)`)
	if err := g.Process().Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	thaw := sync.OnceValue(func() error { return g.Process().Signal(syscall.SIGCONT) })
	t.Cleanup(func() { _ = thaw() })
	b.shows("#live", "No word from the gateway for ")
	b.until("no deadline is counted down", `document.querySelector("#held .left").textContent === "not known"`)
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	b.live()
	g.hold("", "orders/1002", "worker B", 10*time.Minute)
	b.shows("#feed tr", "orders/1002")
	b.want("no event is there twice", `[...document.querySelectorAll("#feed tr")].filter((e) => e.innerText.includes("orders/1001")).length === 1`)
}

func saysAway(t *testing.T, browser chromium) {
	pg := stacktest.Postgres(t, stacktest.New(t), stack.PostgresConfig{})
	g := browser.serve(t, stack.GatewayConfig{URL: pg.As(stack.Gateway)})
	g.hold("", "orders/1001", "worker A", 10*time.Minute)
	b := browser.open(t, g.base, "/")
	b.live()
	b.shows("#held", "orders/1001")
	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	b.shows("#now .alert[role=alert]", "PostgreSQL is away.", "no lease is granted")
	b.shows("#held", "Not known.")
	b.visit("/")
	b.live()
	b.shows("#now .alert[role=alert]", "PostgreSQL is away.")
}
