package page_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// patience bounds each wait for a change of the page.
const patience = 30 * time.Second

// chromium is a browser, and the program that it looks at.
type chromium struct {
	ctx     context.Context
	program string
}

// startChromium starts a headless browser, which ends with the test.
func startChromium(t *testing.T) chromium {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("hide-scrollbars", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // required as root
	}
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, _ = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("close the browser: %v", err)
		}
		cancel()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return chromium{ctx: ctx}
}

// tab is a page of the browser, with its own cookies.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu         sync.Mutex
	complaints []string // the browser's errors
}

// open opens a path of a gateway. Any error that the browser reports fails the test, at its end.
func (c chromium) open(t *testing.T, base, path string) *tab {
	t.Helper()
	ctx, _ := chromedp.NewContext(c.ctx, chromedp.WithNewBrowserContext())
	b := &tab{t: t, ctx: ctx, base: base}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("close the tab: %v", err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, complaint := range b.complaints {
			t.Errorf("the browser complains: %s", complaint)
		}
	})
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	b.visit(path)
	return b
}

func (b *tab) listen(event any) {
	var complaint string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		complaint = fmt.Sprintf("%+v", *e.ExceptionDetails)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning || e.Type == runtime.ConsoleAPICalledTypeAssert {
			complaint = fmt.Sprintf("console.%s", e.Type)
			for _, arg := range e.Args {
				complaint += fmt.Sprintf(" %s%s", arg.Value, arg.Description)
			}
		}
	case *log.EventEntryAdded:
		if at, err := url.Parse(e.Entry.URL); err == nil && e.Entry.Source == log.EntrySourceNetwork && strings.Contains(e.Entry.Text, "status of 401") && !strings.HasSuffix(at.Path, "/events") {
			return // the login form, whose status is 401
		}
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			complaint = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	}
	if complaint != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, complaint)
	}
}

// do runs actions, and fails the test if one does not complete in time.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%v\n%s", err, b.text())
	}
}

// visit goes to a path.
func (b *tab) visit(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

// run runs a script in the page.
func (b *tab) run(script string) {
	b.t.Helper()
	b.do(chromedp.Evaluate[chromedp.Void](script))
}

// click clicks the element of a selector.
func (b *tab) click(selector chromedp.CSS) {
	b.t.Helper()
	b.do(chromedp.Click(selector))
}

// text is the page's visible text.
func (b *tab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// is evaluates a condition in the page.
func (b *tab) is(condition string) (yes bool, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
}

// until waits for a condition in the page. An error counts as no: the page may be navigating.
func (b *tab) until(what, condition string) {
	b.t.Helper()
	late := time.After(patience)
	for {
		yes, err := b.is(condition)
		if yes && err == nil {
			return
		}
		select {
		case <-late:
			b.t.Fatalf("%s: not so (%v) in\n%s", what, err, b.text())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// want checks a condition that has to hold now.
func (b *tab) want(what, condition string) {
	b.t.Helper()
	if yes, err := b.is(condition); err != nil || !yes {
		b.t.Errorf("%s: not so (%v) in\n%s", what, err, b.text())
	}
}

// shows waits until the elements of a selector show each text.
func (b *tab) shows(selector string, texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		b.until(selector+" shows "+text, fmt.Sprintf("[...document.querySelectorAll(%q)].some((e) => e.innerText.includes(%q))", selector, text))
	}
}

// live waits until the page has received its first update.
func (b *tab) live() {
	b.t.Helper()
	b.shows("#live", "Live.")
}

// press presses a key: kb.Tab, kb.Enter.
func (b *tab) press(key string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(key))
}

// tabTo presses Tab until a selector's element has the focus.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	condition := fmt.Sprintf("document.activeElement.matches(%q)", selector)
	for range 20 {
		b.press(kb.Tab)
		if yes, err := b.is(condition); err == nil && yes {
			return
		}
	}
	b.t.Fatalf("the Tab key does not reach %s", selector)
}
