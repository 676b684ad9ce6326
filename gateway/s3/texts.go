package s3

// Texts and limits that several operations share.

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func quoted(etag string) string { return `"` + etag + `"` }

const maxList = 1000 // entries per answer
