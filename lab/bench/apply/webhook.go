package apply

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // GitHub's timeout
	defer cancel()
	_, err = harness.Ask(ctx, http.MethodPost, h.url, body, http.Header{
		"Content-Type": {"application/json"}, "X-Github-Event": {"push"}, "X-Github-Delivery": {rand.Text()},
		"X-Hub-Signature-256": {harness.SignWebhook(h.secret, body)},
	})
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	return nil
}
