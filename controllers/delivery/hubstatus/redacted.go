package hubstatus

import (
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Redacted returns a status without secrets, whose texts about rules are bounded. It redacts before
// it cuts: a part of a secret would not be recognised.
func Redacted(redactor *redact.Redactor, s *v1alpha1.DeliveryStatus) *v1alpha1.DeliveryStatus {
	clean := func(text *string) bool { return redactor.Text(*text) == *text }
	fits := func(text *string) bool { return short(*text) == *text }
	if !slices.ContainsFunc(textsOf(s), func(text *string) bool { return !clean(text) }) &&
		!slices.ContainsFunc(ruleTextsOf(s), func(text *string) bool { return !fits(text) }) {
		return s // the usual case; no copy is held
	}
	s = s.DeepCopy()
	for _, text := range textsOf(s) {
		*text = redactor.Text(*text)
	}
	for _, text := range ruleTextsOf(s) {
		*text = short(*text)
	}
	return s
}

// ruleTextsOf returns the texts of a status that rules in git, or their messages, have written.
func ruleTextsOf(s *v1alpha1.DeliveryStatus) []*string {
	var texts []*string
	for i := range s.Held {
		texts = append(texts, &s.Held[i].Path, &s.Held[i].Rule, &s.Held[i].Because, &s.Held[i].Fix)
	}
	for i := range s.Warnings {
		texts = append(texts, &s.Warnings[i].Path, &s.Warnings[i].Rule, &s.Warnings[i].Because, &s.Warnings[i].Fix)
	}
	return texts
}

// textsOf returns the texts of a status that another party may have written.
func textsOf(s *v1alpha1.DeliveryStatus) []*string {
	texts := []*string{&s.Message}
	if s.Pinned != nil {
		texts = append(texts, &s.Pinned.Because, &s.Pinned.By)
	}
	texts = append(texts, ruleTextsOf(s)...)
	for i := range s.Checks {
		texts = append(texts, &s.Checks[i].Message)
	}
	for i := range s.Conditions {
		texts = append(texts, &s.Conditions[i].Message)
	}
	return texts
}

// short bounds a text from git in bytes: a status that is too large could not be written.
func short(text string) string {
	const most = 500
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
