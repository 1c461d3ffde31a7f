package receiver

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers in which git hosts send signatures.
const (
	headerHub      = "X-Hub-Signature-256" // GitHub; Gitea and Forgejo send it, too
	headerGitea    = "X-Gitea-Signature"
	headerForgejo  = "X-Forgejo-Signature"
	headerStandard = "Webhook-Signature" // standardwebhooks.com: GitLab's signing token
	headerGitLab   = "X-Gitlab-Token"    // the secret itself: older GitLab has nothing else
)

// skew is how far the clock of a sender that signs the time may be off.
const skew = 5 * time.Minute

// signature is the proof of origin in the headers of a webhook.
type signature struct {
	// sums are valid if one of them is the sum by a secret; nil: token is compared.
	sums  [][]byte
	token string
	// before is signed in front of the body.
	before string
	// standard means that the secret is in the format of Standard Webhooks.
	standard bool
}

// signatureOf reads the headers. The error is a [refusal].
func signatureOf(h http.Header, now time.Time) (signature, error) {
	switch {
	case h.Get(headerStandard) != "":
		return standardOf(h, now)
	case h.Get(headerHub) != "":
		text, ok := strings.CutPrefix(h.Get(headerHub), "sha256=")
		return hexOf(text, ok)
	case cmp.Or(h.Get(headerForgejo), h.Get(headerGitea)) != "":
		return hexOf(cmp.Or(h.Get(headerForgejo), h.Get(headerGitea)), true)
	case h.Get(headerGitLab) != "":
		return signature{token: h.Get(headerGitLab)}, nil
	}
	return signature{}, errUnsigned
}

func hexOf(text string, ok bool) (signature, error) {
	sum, err := hex.DecodeString(text)
	if !ok || err != nil || len(sum) != sha256.Size {
		return signature{}, errForged
	}
	return signature{sums: [][]byte{sum}}, nil
}

// standardOf reads "v1,BASE64 v1,BASE64 …". There is more than one sum while a secret is being
// replaced.
func standardOf(h http.Header, now time.Time) (signature, error) {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || id == "" {
		return signature{}, errForged
	}
	if off := now.Sub(time.Unix(seconds, 0)).Abs(); off > skew {
		return signature{}, errOld
	}
	s := signature{before: id + "." + stamp + ".", standard: true}
	for one := range strings.FieldsSeq(h.Get(headerStandard)) {
		text, ok := strings.CutPrefix(one, "v1,")
		sum, err := base64.StdEncoding.DecodeString(text)
		if ok && err == nil && len(sum) == sha256.Size {
			s.sums = append(s.sums, sum)
		}
	}
	if len(s.sums) == 0 {
		return signature{}, errForged
	}
	return s, nil
}

// key returns the signing key of a secret.
func (s signature) key(secret Secret) []byte {
	if text, ok := strings.CutPrefix(string(secret), "whsec_"); ok && s.standard {
		if key, err := base64.StdEncoding.DecodeString(text); err == nil {
			return key
		}
	}
	return []byte(secret)
}

// by reports whether one of the sums of the signature is the given sum.
func (s signature) by(sum []byte) bool {
	known := false
	for _, given := range s.sums {
		known = hmac.Equal(given, sum) || known
	}
	return known
}

// tokenOf reports whether the token is one of the secrets. It compares hashes, so its timing
// reveals neither the secrets nor their lengths.
func (s signature) tokenOf(secrets []Secret) bool {
	given, known := sha256.Sum256([]byte(s.token)), false
	for _, secret := range secrets {
		want := sha256.Sum256([]byte(secret))
		known = hmac.Equal(given[:], want[:]) || known
	}
	return known
}
