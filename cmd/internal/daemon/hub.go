package daemon

import (
	"context"
	"log/slog"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/controllers/connect"
)

// FollowedHub returns settings for the hub that renew their credentials until ctx ends. It also
// returns a source of connections that reads and watches Secrets with those settings.
func (p Process) FollowedHub(ctx context.Context, log *slog.Logger) (connect.Source, *rest.Config, error) {
	source := connection.New(p.Invocation).Source().Remembering()
	line, err := connect.Dial(ctx, p.Env.Now, func(context.Context) (*rest.Config, error) { return source.Hub() }, connect.Callbacks{
		Renewed: func() { log.Info("the connection to the hub has new credentials") },
		Trouble: func(err error) {
			if err == nil {
				log.Info("the hub's credentials can be used again")
				return
			}
			log.Warn("the hub's new credentials can't be used; those from before stay in use", "error", err)
		},
		Moved: func(server string) {
			log.Error("the kubeconfig names another hub by now; it is the hub from the next start on", "server", server)
		},
	})
	if err != nil {
		return source, nil, err
	}
	hub := line.Config()
	if source.Secrets, err = connect.SecretsOf(hub); err != nil {
		return source, nil, err
	}
	if source.Watch, err = connect.WatchSecretsOf(hub, log); err != nil {
		return source, nil, err
	}
	go line.Run(ctx)
	go source.Follow(ctx, v1alpha1.Connection{Hub: true}, line.Again)
	return source, hub, nil
}
