package main

import (
	"context"
	"fmt"
	"time"
)

func later() time.Time { return time.Now().Add(time.Hour) }

// playFence writes with every kind of grant, under every rule.
func playFence(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	for name, rule := range map[string]string{
		"g-fence": "prefix:1", "g-fence-bucket": "bucket", "g-fence-key": "key", "g-fence-none": "none", "g-fence-monotone": "monotone:prefix:1",
	} {
		if err := w.bucket(ctx, name, rule, ""); err != nil {
			return err
		}
	}
	stale, current, err := w.pair(ctx, "g-fence/1")
	if err != nil {
		return err
	}
	other, err := w.acquire(ctx, "g-fence/2")
	if err != nil {
		return err
	}
	const object = "/g-fence/1/object"
	b.part("a lease's credentials")
	t.do(current.keys, "PUT", object, body("hello"))
	t.do(stale.keys, "PUT", object, body("late"))
	t.do(stale.keys, "DELETE", object)
	t.do(stale.keys, "PUT", object, header("X-Amz-Copy-Source", "g-fence/1/object"))
	t.do(stale.keys, "POST", object+"?uploads")
	t.do(stale.keys, "GET", object)
	t.do(other.keys, "PUT", object, body("x"))
	t.do(sessionOf("g-fence/1", 999, later()), "PUT", object, body("x"), note("a token that was never issued"))
	t.do(sessionOf("g-fence/9", 1, later()), "PUT", "/g-fence/9/object", body("x"), note("a resource without a fence"))
	t.do(sessionOf("g-fence/1", 1, time.Now().Add(-time.Hour)), "PUT", object, body("x"), note("expired"))
	t.do(sessionOf("g-fence/1", 1, time.Now().Add(-time.Hour)), "GET", object, note("expired"))
	t.do(root, "PUT", object, body("x"))
	t.do(anonymous, "PUT", object, body("x"))
	t.do(root, "GET", object)

	t.byHeader(object, stale, current)
	t.lateAttempts(object, current.keys)
	return t.err
}

// byHeader writes with root's credentials and a Fencing-Token, under every rule.
func (t *talk) byHeader(object string, stale, current lease) {
	t.b.part("Fencing-Token")
	token := func(value string) option { return header("Fencing-Token", value) }
	t.do(root, "PUT", object, body("by header"), token(current.Grant))
	t.do(root, "PUT", object, body("x"), token(stale.Grant))
	t.do(root, "PUT", object, body("x"), token(current.Token))
	t.do(root, "PUT", object, body("x"), token(current.Token+"."+stale.seal()))
	t.do(root, "PUT", object, body("x"), token("99."+current.seal()))
	t.do(root, "PUT", object, body("x"), token("0."+current.seal()))
	t.do(root, "PUT", object, body("x"), token("nonsense"))
	t.do(root, "PUT", object, body("x"), unsigned("Fencing-Token", current.Grant))
	t.do(root, "PUT", "/g-fence/2/object", body("x"), token(current.Grant))
	t.do(current.keys, "PUT", object, body("x"), token(current.Grant))
	t.do(root, "DELETE", object, token(stale.Grant))
	t.do(root, "DELETE", object, token(current.Grant))

	t.b.part("rules")
	for _, bucket := range []string{"g-fence-bucket", "g-fence-key", "g-fence-none", "g-fence-monotone"} {
		t.do(root, "PUT", "/"+bucket+"/1/object", body("x"))
		t.do(current.keys, "PUT", "/"+bucket+"/1/object", body("x"))
		t.do(root, "PUT", "/"+bucket+"/1/object", body("x"), token("5"))
		t.do(root, "PUT", "/"+bucket+"/1/object", body("x"), token("4"))
		t.do(root, "PUT", "/"+bucket+"/1/object", body("x"), token(current.Grant))
		t.do(root, "PUT", "/"+bucket+"/1/object", body("x"), token("0"))
	}
	t.do(root, "PUT", "/g-fence/object-without-a-prefix", body("x"))
	t.do(current.keys, "PUT", "/g-fence/object-without-a-prefix", body("x"))
}

// lateAttempts repeats requests after newer ones.
func (t *talk) lateAttempts(object string, holder principal) {
	t.b.part("late attempts")
	attempt := func(method, id, data string, signed bool) {
		if signed {
			t.do(holder, method, object, body(data), header("Amz-Sdk-Invocation-Id", id))
			return
		}
		t.do(holder, method, object, body(data), unsigned("Amz-Sdk-Invocation-Id", id))
	}
	for _, signed := range []bool{true, false} {
		id := fmt.Sprintf("one-%t", signed)
		attempt("PUT", id, "first", signed)
		attempt("PUT", id+"-newer", "second", signed)
		attempt("PUT", id, "first", signed)
		attempt("PUT", id, "another", signed)
		attempt("DELETE", id, "", signed)
		t.do(root, "GET", object)
		attempt("DELETE", id+"-deletion", "", signed)
		attempt("PUT", id+"-newest", "third", signed)
		attempt("DELETE", id+"-deletion", "", signed)
		t.do(root, "GET", object)
	}
}

// playStages stages uploads and publishes them.
func playStages(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-stages", "prefix:1", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-stages/1")
	if err != nil {
		return err
	}
	h := l.keys
	const object = "/g-stages/1/object"
	b.part("staging")
	stage := header("Fencing-Stage", "true")
	id := t.do(h, "PUT", object, body("staged"), stage).header.Get("Fencing-Stage")
	t.do(root, "GET", object)
	t.do(h, "PUT", object, body("x"), header("Fencing-Stage", "nonsense"))
	t.do(h, "PUT", object, body("x"), unsigned("Fencing-Stage", "true"))
	t.do(root, "PUT", object, body("x"), stage)
	t.do(h, "DELETE", object, stage)
	t.do(h, "PUT", object, stage, header("X-Amz-Copy-Source", "g-stages/1/object"))
	tags := `<Tagging><TagSet></TagSet></Tagging>`
	t.do(h, "PUT", object+"?tagging", stage, body(tags), header("Content-MD5", md5Of(tags)))
	t.do(h, "GET", object, stage)
	b.part("publishing, by SQL over HTTP")
	api := &apiTalk{ctx: ctx, w: w, b: b}
	grant := apiHeader("Fencing-Resource", "g-stages%2F1", "Fencing-Token", l.Grant)
	publish := func(call, id string) {
		api.with(grant, "POST", "/v1/sql", fmt.Sprintf(`{"statements":[{"sql":"SELECT * FROM %s","args":[%q]}]}`, call, id))
	}
	publish("fence.staged($1)", id)
	publish("fence.publish($1)", id)
	publish("fence.publish($1)", id)
	publish("fence.staged($1)", id)
	publish("fence.publish($1)", "00000000000000000000000000000000")
	publish("fence.staged($1)", "00000000000000000000000000000000")
	publish("fence.publish($1, if_match => 'x')", t.must(h, "PUT", object, body("again"), stage).header.Get("Fencing-Stage"))
	publish("fence.publish($1, if_none_match => true)", t.must(h, "PUT", object, body("again"), stage).header.Get("Fencing-Stage"))
	publish("fence.unpublish('g-stages', $1)", "1/object")
	publish("fence.unpublish('g-stages', $1)", "1/object")
	publish("fence.unpublish('g-nowhere', $1)", "1/object")
	t.do(root, "GET", object)
	if api.err != nil {
		return api.err
	}
	return t.err
}
