package page_test

import (
	"flag"
	"os"
	"path/filepath"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "rewrite the pictures in docs")

// largest bounds a picture, in bytes, because it is in the repository.
const largest = 150 << 10

// takePictures takes the pictures in docs/page.md.
func takePictures(b *tab) {
	b.t.Helper()
	for _, one := range []struct {
		name, scheme  string
		width, height int64
	}{{"page-light.png", "light", 1100, 930}, {"page-dark.png", "dark", 1100, 930}, {"page-narrow.png", "light", 400, 900}} {
		media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: one.scheme}}}
		if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
			b.t.Fatal(err)
		}
		b.do(chromedp.EmulateViewport(one.width, one.height))
		b.until("the look is "+one.scheme, `(getComputedStyle(document.body).backgroundColor === "rgb(255, 255, 255)") === `+map[string]string{"light": "true", "dark": "false"}[one.scheme])
		b.want(one.name+": nothing is wider than the window", `document.documentElement.scrollWidth <= innerWidth`)
		picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			b.t.Fatal(err)
		}
		if len(picture) > largest {
			b.t.Errorf("%s has %d bytes", one.name, len(picture))
		}
		if !*update {
			continue
		}
		if err := os.WriteFile(filepath.Join("../../docs", one.name), picture, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}
