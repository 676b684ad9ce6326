// Package activity remembers the events of a gateway, for people: which writes were refused, and who acquired, released
// or lost what.
//
// The guarantee: each event is counted, and a reader that keeps up receives it. Memory is bounded: the feed keeps the
// latest events, and a reader that falls behind learns how many it missed. No writer waits for a reader. An event
// contains no secret and no value of a row: text from clients is checked and shortened, see [Refused] and [Cleaned].
//
//	feed := activity.New(activity.Config{Logger: log})
//	defer feed.Close()
//	feed.Tell(activity.Refused(err, activity.Event{Surface: wire.SurfaceS3, Client: addr}))
//	events, err := feed.Since(ctx, "")
package activity
