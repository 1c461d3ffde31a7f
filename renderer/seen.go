package renderer

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// seen is the part of a cluster's capabilities that a chart can see. It lacks what the chart's
// files and values never name. So a cluster that serves one more kind shares the renders of all
// charts that don't ask for that kind. A chart that asks in a way that can't be analysed sees
// everything.
type seen struct {
	kubeVersion string
	apiVersions []string // sorted
}

// seenBy narrows a request's capabilities to what its chart can see.
func seenBy(r Request) seen {
	u := newUse()
	u.all = len(r.Values.EncryptedFiles()) > 0 // encrypted values can't be searched
	for _, f := range r.Version.Chart {
		// A subchart's files can't be read before they are unpacked.
		if u.all = u.all || strings.HasSuffix(f.Name, ".tgz"); u.all {
			break
		}
		u.scan(f.Data)
	}
	u.lookInto(r.Values.Map()) // values may hold templates
	s := seen{kubeVersion: defaultKubeVersion}
	if u.all || u.kubeVersion {
		s.kubeVersion = r.Capabilities.KubeVersion
	}
	for _, v := range r.Capabilities.APIVersions {
		if u.all || u.apiVersions || u.asked[v] {
			s.apiVersions = append(s.apiVersions, v)
		}
	}
	slices.Sort(s.apiVersions) // two clusters that serve the same share the render
	return s
}

// use is how a chart uses capabilities.
type use struct {
	all, kubeVersion, apiVersions bool
	asked                         map[string]bool // by name

	handed, known, byName *regexp.Regexp
}

func newUse() *use {
	return &use{
		asked:  map[string]bool{},
		handed: regexp.MustCompile("[.\"`]Capabilities\\b"),
		known:  regexp.MustCompile(`\.Capabilities\.(?:KubeVersion|APIVersions|HelmVersion)\b`),
		byName: regexp.MustCompile("\\.APIVersions\\.Has\\s+\\(?\\s*[\"`]([^\"`]+)[\"`]"),
	}
}

func (u *use) scan(text []byte) {
	const (
		kubeVersion = "ubeVersion" // and kubeVersion in Chart.yaml
		apiVersions = ".APIVersions"
	)
	u.kubeVersion = u.kubeVersion || bytes.Contains(text, []byte(kubeVersion))
	if len(u.handed.FindAllIndex(text, -1)) != len(u.known.FindAllIndex(text, -1)) {
		u.all = true // passed on as a whole
	}
	n := bytes.Count(text, []byte(apiVersions))
	if n == 0 {
		return
	}
	asked := u.byName.FindAllSubmatch(text, -1)
	for _, m := range asked {
		u.asked[string(m[1])] = true
	}
	u.apiVersions = u.apiVersions || len(asked) != n
}

// lookInto searches all strings of a value.
func (u *use) lookInto(v any) {
	switch v := v.(type) {
	case string:
		u.scan([]byte(v))
	case []any:
		for _, e := range v {
			u.lookInto(e)
		}
	case map[string]any:
		for k, e := range v {
			u.scan([]byte(k))
			u.lookInto(e)
		}
	}
}
