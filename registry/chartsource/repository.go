package chartsource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry/archive"
)

// repositoryEntry is an entry of Helm's repositories.yaml, with the fields that are used.
type repositoryEntry struct {
	URL      string `json:"url"`
	Username string `json:"username"`
	Password string `json:"password"`
}

// readRepositoryConfig reads all entries. A missing file has none.
func readRepositoryConfig(file string) ([]repositoryEntry, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read credentials for chart repositories: %w", err)
	}
	var config struct {
		Repositories []repositoryEntry `json:"repositories"`
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		// The error of the parser may quote the file, with its passwords.
		return nil, fmt.Errorf("read credentials for chart repositories: %s is not YAML as helm writes it", file)
	}
	return config.Repositories, nil
}

// chartRepository is a repository with an index.yaml.
type chartRepository struct {
	client *Client
	url    *url.URL
	user   *url.Userinfo // nil: no credentials are known
}

func (c *Client) chartRepository(place string) (*chartRepository, error) {
	u, err := url.Parse(place)
	if err != nil {
		return nil, fmt.Errorf("%q is no URL", place)
	}
	r := &chartRepository{client: c, url: u}
	for _, e := range c.passwords {
		at, err := url.Parse(e.URL)
		if err == nil && e.Username+e.Password != "" && origin(at) == origin(u) && strings.TrimSuffix(at.Path, "/") == strings.TrimSuffix(u.Path, "/") {
			r.user = url.UserPassword(e.Username, e.Password)
		}
	}
	return r, nil
}

// indexed is one version of a chart in an index.
type indexed struct {
	Version string   `json:"version"`
	URLs    []string `json:"urls"`
	Digest  string   `json:"digest"`
}

// index returns the versions of a chart in the repository's index; none is an error.
func (r *chartRepository) index(ctx context.Context, name string) ([]indexed, error) {
	u := *r.url
	u.Path = strings.TrimSuffix(u.Path, "/") + "/index.yaml"
	u.RawPath = ""
	r.client.log("read %s", shown(&u))
	data, err := r.client.get(ctx, &u, r.user, maxIndex)
	if err != nil {
		return nil, fmt.Errorf("read the index of %s: %w", shown(r.url), err)
	}
	var index struct {
		Entries map[string][]*indexed `json:"entries"`
	}
	if json.Valid(data) {
		err = json.Unmarshal(data, &index)
	} else {
		err = yaml.Unmarshal(data, &index)
	}
	if err != nil {
		return nil, fmt.Errorf("read the index of %s: %w", shown(r.url), err)
	}
	var out []indexed
	for _, e := range index.Entries[name] {
		if e != nil {
			out = append(out, *e)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("chart repository %s has no chart %q", shown(r.url), name)
	}
	return out, nil
}

// read returns the .tgz of a version. Its digest must match the index, if the index has one.
func (r *chartRepository) read(ctx context.Context, v indexed) ([]byte, error) {
	if len(v.URLs) == 0 {
		return nil, fmt.Errorf("the index of %s has no URL for version %s", shown(r.url), v.Version)
	}
	at, err := url.Parse(v.URLs[0])
	if err != nil {
		return nil, fmt.Errorf("the index of %s has a broken URL for version %s", shown(r.url), v.Version)
	}
	if !at.IsAbs() { // resolved like Helm does
		base := *r.url
		base.Path, base.RawPath = strings.TrimSuffix(base.Path, "/")+"/", ""
		at = base.ResolveReference(at)
	}
	data, err := r.download(ctx, at)
	if err != nil {
		return nil, err
	}
	if want := strings.TrimPrefix(v.Digest, "sha256:"); want != "" && "sha256:"+want != archive.Digest(data) {
		return nil, fmt.Errorf("%s is %s, and the index says sha256:%s", shown(at), archive.Digest(data), want)
	}
	return data, nil
}

func (r *chartRepository) download(ctx context.Context, at *url.URL) ([]byte, error) {
	r.client.log("read %s", shown(at))
	switch {
	case at.User != nil:
		return nil, fmt.Errorf("the index of %s has a URL with credentials in it", shown(r.url))
	case at.Scheme == "oci": // an index may list charts that moved to a registry
		place, version, ok := strings.Cut(at.Host+at.Path, ":")
		if at.Port() != "" {
			place, version, ok = cutLast(at.Host + at.Path)
		}
		if !ok {
			return nil, fmt.Errorf("%s names no version", shown(at))
		}
		return r.client.readTag(ctx, "oci://"+place, version)
	case at.Scheme == "https", at.Scheme == "http":
		user := r.user
		if origin(at) != origin(r.url) {
			user = nil
		}
		return r.client.get(ctx, at, user, maxArchive)
	}
	return nil, fmt.Errorf("the index of %s has a URL that starts with %q", shown(r.url), at.Scheme)
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndex(s, ":")
	if i < 0 || strings.Contains(s[i:], "/") {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func (c *Client) readTag(ctx context.Context, place, tag string) ([]byte, error) {
	o, err := c.ociChart(place)
	if err != nil {
		return nil, err
	}
	desc, err := o.find(ctx, versionOf(tag))
	if err != nil {
		return nil, err
	}
	return o.read(ctx, desc.Digest.String())
}

// metadata is a chart's Chart.yaml, with the dependencies of requirements.yaml
// and the versions that a lock file fixes.
type metadata struct {
	Name         string       `json:"name"`
	Version      string       `json:"version"`
	Dependencies []dependency `json:"dependencies"`
}

type dependency struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	Repository string `json:"repository"`
}

func readMetadata(files []archive.File) (*metadata, error) {
	m := &metadata{}
	if found, err := readYAML(files, "Chart.yaml", m); err != nil || !found {
		if err == nil {
			err = errors.New("there is no Chart.yaml in it")
		}
		return nil, err
	}
	if len(m.Dependencies) == 0 { // charts of Helm 2
		if _, err := readYAML(files, "requirements.yaml", m); err != nil {
			return nil, err
		}
	}
	var lock struct {
		Dependencies []dependency `json:"dependencies"`
	}
	for _, name := range []string{"requirements.lock", "Chart.lock"} {
		if _, err := readYAML(files, name, &lock); err != nil {
			return nil, err
		}
	}
	for i := range m.Dependencies {
		d := &m.Dependencies[i]
		for _, locked := range lock.Dependencies {
			if locked.Name == d.Name && locked.Repository == d.Repository && satisfies(d.Version, locked.Version) {
				d.Version = locked.Version
				break
			}
		}
	}
	return m, nil
}

func readYAML(files []archive.File, name string, into any) (found bool, err error) {
	for _, f := range files {
		if f.Name == name {
			data := bytes.TrimPrefix(f.Data, []byte("\xEF\xBB\xBF"))
			if err := yaml.Unmarshal(data, into); err != nil {
				return true, fmt.Errorf("read %s: %w", name, err)
			}
			return true, nil
		}
	}
	return false, nil
}
