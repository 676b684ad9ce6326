package main

import (
	"net/url"
	"regexp"
	"strings"
)

// mask replaces a secret in output.
const mask = "***"

// masked returns an option's value without the password in it, in a URL or in PostgreSQL's form "host=db password=…".
// If the password can't be located, it shows nothing.
func masked(text string) string {
	if !strings.Contains(text, "://") {
		if secretPair.MatchString(text) {
			return mask
		}
		return text
	}
	u, err := url.Parse(text)
	if err != nil {
		return mask
	}
	_, has := u.User.Password()
	bare := *u
	bare.User = nil
	if strings.Contains(bare.String(), "@") || strings.Contains(bare.String(), "%40") { // the password contains / ? or #
		return mask
	}
	query := u.Query()
	for name := range query {
		if secretWord.MatchString(name) {
			query.Set(name, mask)
			has, u.RawQuery = true, query.Encode()
		}
	}
	if !has {
		return text
	}
	if _, inUser := u.User.Password(); inUser {
		u.User = url.UserPassword(u.User.Username(), mask)
	}
	return strings.ReplaceAll(u.String(), url.QueryEscape(mask), mask)
}

var (
	secretPair = regexp.MustCompile(`(?i)passw\w*\s*=`)
	secretWord = regexp.MustCompile(`(?i)passw|secret`)
)

func maskedAll(texts []string) []string {
	shown := make([]string, len(texts))
	for i, text := range texts {
		shown[i] = masked(text)
	}
	return shown
}
