package apply

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
)

// webhook holds the URL that a git host notifies of pushes, and the signing secret.
type webhook struct{ url, secret string }

// send reports a push to main as GitHub does, and returns after the receiver has accepted the
// request.
func (h webhook) send(ctx context.Context, repository string) error {
	body, err := json.Marshal(map[string]any{
		"ref": "refs/heads/main", "forced": false, "deleted": false,
		"repository": map[string]any{"full_name": "bench/fleet", "clone_url": repository, "default_branch": "main"},
		"pusher":     map[string]any{"name": "bench", "email": "bench@example.com"},
	})
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-GitHub-Event", "push")
	request.Header.Set("X-GitHub-Delivery", rand.Text())
	request.Header.Set("X-Hub-Signature-256", harness.SignWebhook(h.secret, body))
	client := &http.Client{Timeout: 10 * time.Second} // GitHub's timeout
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("webhook: %s: %s", answer.Status, text)
	}
	return nil
}
