package apply

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/harness"

	"github.com/keelson-io/keelson/lab/harness/must"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/process"
)

// startController starts keelson controller with the cluster as its own hub.
func (m *measurement) startController(repo, kubeconfig string, interval time.Duration, more ...string) *keelson.Controller {
	return must.Get(keelson.Start(keelson.Options{
		Program: m.keelson, Dir: m.dir, Name: "controller", Repo: repo, Kubeconfig: kubeconfig, Context: clusterName, Interval: interval, More: more,
	}))
}

// asKeelson returns a controller as a contestant. A webhook notifies it of pushes.
func (m *measurement) asKeelson(ctx context.Context, server *gitserver.Server, _ []unstructured.Unstructured) contestant {
	url := server.URL(filepath.Base(m.fleet.bare))
	secret := filepath.Join(m.dir, "webhook-secret")
	hook := webhook{secret: rand.Text()}
	must.Do(os.WriteFile(secret, []byte(hook.secret+"\n"), 0o600))
	flags := append([]string{"--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", secret}, m.flags...)
	var c *keelson.Controller
	m.fleet.clone(ctx, url)
	return contestant{
		name: byKeelson, repo: m.fleet,
		settings: []string{
			fmt.Sprintf("a controller, told by a signed webhook as GitHub sends it; by itself it looks at git every %s", gitInterval),
			"more of its flags: " + cmp.Or(strings.Join(m.flags, " "), "none"),
		},
		levels: func(_ []int, level func(int) string) addons.Files {
			files := addons.Files{}
			m.setLevels(files, level)
			return files
		},
		nothing: func() addons.Files {
			files := addons.Files{}
			m.setPass(files, "1")
			return files
		},
		start: func(_ context.Context, kubeconfig string) ([]*process.Child, error) {
			c = m.startController(url, kubeconfig, gitInterval, flags...)
			return []*process.Child{c.Child}, nil
		},
		tell: func(ctx context.Context) {
			hook.url = "http://" + must.Get(c.Serves("webhooks")) + "/hook"
			must.Do(hook.send(ctx, url))
		},
	}
}

// kubeconfig writes a kubeconfig whose context has the cluster's name in git.
func (m *measurement) kubeconfig(lab, user string) string {
	out := filepath.Join(m.dir, lab+"-kubeconfig.yaml")
	must.Do(harness.WriteKubeconfig(out, clusterName, map[string][]byte{clusterName: must.Get(harness.Kubeconfig(m.lab, lab, user))}))
	return out
}
