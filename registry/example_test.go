package registry_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

// A fleet repository is read at the head of its branch: which version of a component a
// cluster should run, and the file and line of each value.
func ExampleRepo_Load() {
	folder, err := exampleRepository(map[string]string{
		"fleet.yaml":                          "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: shop\n",
		"components/web/component.yaml":       "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: shop\n",
		"components/web/template/Chart.yaml":  "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"components/web/template/values.yaml": "replicas: 1\n",
		"clusters/prod-eu-01/cluster.yaml":    "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nconnection: {context: prod-eu-01}\n",
		"clusters/prod-eu-01/web.yaml":        "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalues:\n  replicas: 3\n",
	}, "web/v1.0.0")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()

	repo, err := registry.Open(context.Background(), gitrepo.Options{URL: folder, CacheDir: filepath.Join(folder, ".cache")})
	if err != nil {
		panic(err)
	}
	fleet, err := repo.Load(context.Background(), "")
	if err != nil {
		panic(err)
	}
	for _, delivery := range fleet.Cluster("prod-eu-01").Deliveries {
		fmt.Println(delivery.Component, delivery.VersionName)
		values, err := delivery.Explain("")
		if err != nil {
			panic(err)
		}
		for _, v := range values {
			fmt.Println(v.Path, v.Value, v.At)
		}
	}
	// Output:
	// web v1.0.0
	// .replicas 3 clusters/prod-eu-01/web.yaml:5:3
}

// exampleRepository commits files to a new repository, with one tag.
func exampleRepository(files map[string]string, tag string) (folder string, err error) {
	if folder, err = os.MkdirTemp("", "fleet-"); err != nil {
		return "", err
	}
	for name, content := range files {
		path := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	repo, err := git.PlainInitWithOptions(folder, &git.PlainInitOptions{InitOptions: git.InitOptions{DefaultBranch: plumbing.Main}})
	if err != nil {
		return "", err
	}
	tree, err := repo.Worktree()
	if err != nil {
		return "", err
	}
	if err := tree.AddGlob("."); err != nil {
		return "", err
	}
	author := &object.Signature{Name: "Ada", Email: "ada@example.com", When: time.Unix(0, 0)}
	commit, err := tree.Commit("the fleet", &git.CommitOptions{Author: author})
	if err != nil {
		return "", err
	}
	_, err = repo.CreateTag(tag, commit, nil)
	return folder, err
}
