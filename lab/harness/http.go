package harness

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Ask sends an HTTP request, and returns the body of the answer as Do does.
func Ask(ctx context.Context, method, url string, body []byte, header http.Header) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", url, err)
	}
	request.Header = header
	return Do(request)
}

// SignWebhook returns the header X-Hub-Signature-256 with which git hosts sign a webhook.
func SignWebhook(secret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// Do returns the body of the answer to a request. A status other than 2xx is an error.
func Do(request *http.Request) (body []byte, err error) {
	answer, err := http.DefaultClient.Do(request)
	if err == nil {
		defer func() { err = errors.Join(err, answer.Body.Close()) }()
		body, err = io.ReadAll(answer.Body)
	}
	if err == nil && answer.StatusCode/100 != 2 {
		err = errors.New(answer.Status)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", request.Method, request.URL, err, body)
	}
	return body, nil
}
