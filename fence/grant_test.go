package fence_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

const sealText = "0123456789abcdef0123456789abcdef"

func TestParseGrant(t *testing.T) {
	t.Parallel()
	for presented, want := range map[string]fence.Token{
		"34." + sealText: 34, "0." + sealText: 0, "34": 34, "9223372036854775807": math.MaxInt64,
	} {
		g, err := fence.ParseGrant("orders/1001", presented)
		if err != nil || g.Token != want || g.Presented() != presented || g.Validate() != nil {
			t.Errorf("token %d: got %v, %v", want, g, err)
		}
	}
}

func TestParseGrantRefusesMalformedTokensWithoutRepeatingThem(t *testing.T) {
	t.Parallel()
	for _, presented := range []string{
		"", "0", "-1", "+1", "01", "1.5", "x", "٣", " 1", "1 ", "9223372036854775808", "99999999999999999999",
		"34.", "34." + sealText[1:], "34." + sealText + "0", "34." + strings.ToUpper(sealText), "34." + strings.Repeat("g", 32),
		"." + sealText, "00." + sealText, "-1." + sealText, "34." + sealText + ".x",
	} {
		g, err := fence.ParseGrant("orders/1001", presented)
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: got %v, %v; want an error", presented, g, err)
			continue
		}
		if len(presented) > 10 && strings.Contains(err.Error(), presented[3:]) {
			t.Errorf("%q: the error repeats it: %v", presented, err)
		}
	}
}

func TestGrantValidate(t *testing.T) {
	t.Parallel()
	seal := fence.NewSeal()
	for name, g := range map[string]fence.Grant{
		"no resource": {Token: 1, Seal: seal}, "negative": {Resource: "r", Token: -1, Seal: seal}, "nothing presented": {Resource: "r"},
	} {
		if err := g.Validate(); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
}

func TestSealsDifferAndHashTheirText(t *testing.T) {
	t.Parallel()
	a, b := fence.NewSeal(), fence.NewSeal()
	same, err := fence.ParseSeal(a.Reveal())
	if err != nil || a.Equal(b) || !a.Equal(same) {
		t.Error("two new seals are equal, or one differs from itself")
	}
	seal, err := fence.ParseSeal(sealText)
	if err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256([]byte(sealText)); !bytes.Equal(seal.Hash(), want[:]) {
		t.Errorf("Hash() = %x, want %x", seal.Hash(), want)
	}
	if (fence.Seal{}).Hash() != nil {
		t.Error("the zero seal has a hash")
	}
}

func TestSealNeverShows(t *testing.T) {
	t.Parallel()
	g, err := fence.ParseGrant("orders/1001", "34."+sealText)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "grant", g, "seal", g.Seal)
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "grant", g, "seal", g.Seal)
	for _, shown := range []string{
		fmt.Sprint(g), fmt.Sprintf("%+v", g), fmt.Sprintf("%#v", g), fmt.Sprintf("%v %s %q %#v %x", g.Seal, g.Seal, g.Seal, g.Seal, g.Seal), string(asJSON), logged.String(),
	} {
		if strings.Contains(shown, sealText) || strings.Contains(shown, fmt.Sprintf("%x", sealText)) {
			t.Errorf("the seal shows in %s", shown)
		}
	}
}

func TestTokenTravelsAsAString(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(fence.Token(math.MaxInt64))
	if err != nil || string(b) != `"9223372036854775807"` {
		t.Fatalf("got %s, %v", b, err)
	}
	var back fence.Token
	if err := json.Unmarshal(b, &back); err != nil || back != math.MaxInt64 {
		t.Fatalf("came back as %d, %v", back, err)
	}
}

func TestEachRefusalHasItsCode(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"ZF001": &fence.StaleError{Resource: "r", Presented: 1, Recorded: 2},
		"ZF002": &fence.NoGrantError{},
		"ZF003": &fence.NeverIssuedError{Resource: "r", Presented: 3},
		"ZF004": &fence.WrongResourceError{Resource: "r", Needed: "s"},
		"ZF005": &fence.UndrainedError{Resource: "r", Token: 2},
	} {
		code, ok := fence.CodeOf(fmt.Errorf("wrapped: %w", err))
		if !ok || code.SQLState != want {
			t.Errorf("%v: got %q, want %q", err, code.SQLState, want)
		}
	}
	if _, ok := fence.CodeOf(errors.New("other")); ok {
		t.Error("an unrelated error has a code")
	}
}
