package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/process"
)

// startController starts keelson controller with the cluster as its own hub.
func (m *measurement) startController(repo, kubeconfig string, interval time.Duration, more ...string) (*keelson.Controller, error) {
	return keelson.Start(keelson.Options{
		Program: m.keelson, Dir: m.dir, Name: "controller", Repo: repo, Kubeconfig: kubeconfig, Context: clusterName, Interval: interval, More: more,
	})
}

// asKeelson returns a controller as a contestant. A webhook notifies it of pushes.
func (m *measurement) asKeelson(ctx context.Context, server *gitserver.Server, _ []unstructured.Unstructured) (contestant, error) {
	url := server.URL(filepath.Base(m.fleet.bare))
	secret := filepath.Join(m.dir, "webhook-secret")
	hook := webhook{secret: rand.Text()}
	if err := os.WriteFile(secret, []byte(hook.secret+"\n"), 0o600); err != nil {
		return contestant{}, fmt.Errorf("write the secret of webhooks: %w", err)
	}
	flags := append([]string{"--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", secret}, m.flags...)
	var c *keelson.Controller
	return contestant{
		name: byKeelson, repo: m.fleet,
		settings: []string{
			fmt.Sprintf("a controller, told by a signed webhook as GitHub sends it; by itself it looks at git every %s", gitInterval),
			"more of its flags: " + cmp.Or(strings.Join(m.flags, " "), "none"),
		},
		levels: func(_ []int, level func(int) string) (addons.Files, error) {
			files := addons.Files{}
			m.setLevels(files, level)
			return files, nil
		},
		nothing: func() addons.Files {
			files := addons.Files{}
			m.setPass(files, "1")
			return files
		},
		start: func(_ context.Context, kubeconfig string) ([]*process.Child, error) {
			var err error
			if c, err = m.startController(url, kubeconfig, gitInterval, flags...); err != nil {
				return nil, err
			}
			return []*process.Child{c.Child}, nil
		},
		tell: func(ctx context.Context) error {
			address, err := c.Serves("webhooks")
			if err != nil {
				return err
			}
			hook.url = "http://" + address + "/hook"
			return hook.send(ctx, url)
		},
	}, m.fleet.clone(ctx, url)
}

// kubeconfig writes a kubeconfig whose context has the cluster's name in git.
func (m *measurement) kubeconfig(lab, user string) (string, error) {
	path, err := m.lab.Kubeconfig(lab, user)
	if err != nil {
		return "", err
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return "", fmt.Errorf("kubeconfig of %s: %w", lab, err)
	}
	current := config.Contexts[config.CurrentContext]
	config.Contexts = map[string]*clientcmdapi.Context{clusterName: current}
	config.CurrentContext = clusterName
	out := filepath.Join(m.dir, lab+"-kubeconfig.yaml")
	if err := clientcmd.WriteToFile(*config, out); err != nil {
		return "", fmt.Errorf("kubeconfig of %s: %w", lab, err)
	}
	return out, nil
}
