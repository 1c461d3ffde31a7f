package registry

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/window"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// checker reports mistakes in the content of a well-formed file. It checks what files of several
// kinds have. What one kind has alone is checked by a type of its own.
type checker struct{ doc *yamlfile.Document }

// key reports a mistake at the key at path.
func (c checker) key(path []string, message, hint string) {
	c.doc.Add(c.doc.KeyPoint(path...), path, message, hint)
}

// value reports a mistake at the value at path.
func (c checker) value(path []string, message, hint string) {
	c.doc.Add(c.doc.ValuePoint(path...), path, message, hint)
}

// oneOf reports a string that is set and not allowed.
func (c checker) oneOf(path []string, got string, allowed ...string) {
	if got == "" || slices.Contains(allowed, got) {
		return
	}
	message := fmt.Sprintf("%s is %q; it must be one of %s", path[len(path)-1], got, strings.Join(allowed, ", "))
	c.value(path, message, naming.Suggest(got, allowed))
}

func (c checker) drift(got v1alpha1.Drift) {
	c.oneOf([]string{"drift"}, string(got), string(v1alpha1.DriftRestore), string(v1alpha1.DriftReport))
}

// serviceAccount reports an invalid name. A key that is set and empty can result from a template or
// a merge, and would grant all of Keelson's rights.
func (c checker) serviceAccount(name string) {
	path := []string{"serviceAccount"}
	_, set := c.doc.Lookup(path...)
	switch wrong := validation.IsDNS1123Subdomain(name); {
	case set == nil || c.doc.Wrong(path...):
	case name == "":
		c.value(path, "serviceAccount is empty", "name one of the component's namespace, or leave the key out for Keelson's own rights")
	case len(wrong) > 0:
		c.value(path, fmt.Sprintf("serviceAccount %q: %s", name, short(wrong)), "name the account alone: it is looked for in the component's namespace")
	}
}

func (c checker) dangerProfile(got v1alpha1.DangerProfile) {
	c.oneOf([]string{"dangerProfile"}, string(got), string(v1alpha1.ProfileBaseline), string(v1alpha1.ProfileStrict), string(v1alpha1.ProfileOff))
}

func (c checker) version(path []string, version string) {
	if version == "" {
		return
	}
	if message, hint := naming.CheckVersion(version); message != "" {
		c.value(path, message, hint)
	}
}

func (c checker) labels(path []string, set map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			c.key(yamlfile.Below(path, key), fmt.Sprintf("label %q: %s", key, short(wrong)), "")
		}
		if wrong := validation.IsValidLabelValue(set[key]); len(wrong) > 0 {
			c.value(yamlfile.Below(path, key), fmt.Sprintf("label %s: %s", key, short(wrong)), "")
		}
	}
}

// short joins the messages of apimachinery, without their examples and regular expressions.
func short(messages []string) string {
	for i, m := range messages {
		messages[i], _, _ = strings.Cut(m, " (e.g.")
	}
	return strings.Join(messages, "; ")
}

func (c checker) connection(path []string, conn v1alpha1.Connection) {
	set := 0
	for _, key := range []string{"context", "secret", "hub"} {
		if _, at := c.doc.Lookup(yamlfile.Below(path, key)...); at != nil {
			set++
		}
	}
	switch {
	case set > 1:
		c.key(path, "connection sets more than one of context, secret and hub; exactly one is needed", "")
	case conn.Context == "" && conn.Secret == nil && !conn.Hub && !c.doc.Wrong(path...):
		c.key(path, "connection sets none of context, secret and hub; exactly one is needed", "")
	}
}

func (c checker) mirrors(mirrors map[string]string) {
	for _, host := range slices.Sorted(maps.Keys(mirrors)) {
		path := []string{"imageMirrors", host}
		if strings.ContainsAny(host, "/@ ") || host == "" {
			c.key(path, fmt.Sprintf("%q is not a registry host", host), "name the host alone: registry.k8s.io")
		}
		to := mirrors[host]
		if c.doc.Wrong(path...) {
			continue
		}
		if wrong := checkRepository(to); wrong != "" || strings.Contains(to, "://") {
			c.value(path, fmt.Sprintf("%q is not a registry host, or a host and a path", to), "")
		}
	}
}

func (c checker) dependsOn(names []string) {
	seen := map[string]bool{}
	for i, name := range names {
		path := []string{"dependsOn", strconv.Itoa(i)}
		if wrong := naming.Check(name); wrong != "" {
			c.value(path, wrong, "")
		}
		if seen[name] {
			c.value(path, fmt.Sprintf("dependsOn names %q twice", name), "")
		}
		seen[name] = true
	}
}

// approval checks one approval, and returns its compiled clusterSelector. The result is nil without
// a clusterSelector, or if it is invalid.
func (c checker) approval(path []string, a v1alpha1.Approval) labels.Selector {
	_, cluster := c.doc.Lookup(yamlfile.Below(path, "cluster")...)
	_, selector := c.doc.Lookup(yamlfile.Below(path, "clusterSelector")...)
	switch {
	case a.Object != "" && a.Stage != "":
		c.value(path, "an approval is of an object or of a stage, not of both", "")
	case a.Object == "" && a.Stage == "" && !c.doc.Wrong(path...):
		c.value(path, "an approval needs an object or a stage", "")
	case a.Stage != "" && (cluster != nil || selector != nil):
		c.value(path, "an approval of a stage is for all of its clusters: it names none", "")
	case a.Stage != "":
	case cluster != nil && selector != nil:
		c.value(path, "an approval is for a cluster or for a clusterSelector, not for both", "")
	case a.Cluster == "" && a.ClusterSelector == nil && !c.doc.Wrong(path...):
		c.value(path, "an approval needs a cluster or a clusterSelector", "")
	}
	kind, name, ok := strings.Cut(a.Object, " ")
	if a.Object != "" && (!ok || kind == "" || name == "" || strings.Contains(name, " ")) {
		c.value(yamlfile.Below(path, "object"), fmt.Sprintf("object %q must be KIND.GROUP NAMESPACE/NAME", a.Object), "keelson diff shows it so")
	}
	if hash, err := hex.DecodeString(a.Hash); a.Hash != "" && (err != nil || len(hash) != 16) {
		c.value(yamlfile.Below(path, "hash"), fmt.Sprintf("hash %q must be 32 hexadecimal digits", a.Hash), "keelson diff shows it with what is held, and keelson rollout show with what is on its way")
	}
	if a.ClusterSelector == nil {
		return nil
	}
	return c.selector(yamlfile.Below(path, "clusterSelector"), *a.ClusterSelector)
}

// selector compiles a cluster selector. It reports mistakes and returns nil if that fails.
func (c checker) selector(path []string, s metav1.LabelSelector) labels.Selector {
	c.labels(yamlfile.Below(path, "matchLabels"), s.MatchLabels)
	ok := true
	for i, e := range s.MatchExpressions {
		one := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}
		if _, err := metav1.LabelSelectorAsSelector(&one); err != nil {
			c.value(append(yamlfile.Below(path, "matchExpressions"), strconv.Itoa(i)), err.Error(), "")
			ok = false
		}
	}
	compiled, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		if ok {
			c.key(path, err.Error(), "")
		}
		return nil
	}
	return compiled
}

// noImages reports meta-config that sets images: an image is the same on every cluster.
func (c checker) noImages(path []string, values map[string]any) {
	if _, ok := values["images"]; ok {
		c.key(yamlfile.Below(path, "images"), "meta-config must not set images: an image is the same on every cluster",
			"set it in the component's images.yaml and publish a version")
	}
}

// one returns which of the keys is set, and reports a problem unless exactly one is set.
func (c checker) one(path []string, what string, keys ...string) string {
	set := slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		_, node := c.doc.Lookup(yamlfile.Below(path, key)...)
		return node == nil
	})
	switch {
	case len(set) > 1:
		c.value(path, fmt.Sprintf("%s is one of %s, and not %s at once", what, strings.Join(keys, ", "), strings.Join(set, " and ")), "")
	case len(set) == 1:
		return set[0]
	case !c.doc.Wrong(path...):
		c.value(path, what+" needs one of "+strings.Join(keys, ", "), "")
	}
	return ""
}

// pipeline reports an invalid name of a pipeline.
func (c checker) pipeline(name string) {
	path := []string{"pipeline"}
	_, set := c.doc.Lookup(path...)
	if set == nil || c.doc.Wrong(path...) {
		return
	}
	if wrong := naming.Check(name); wrong != "" {
		c.value(path, "pipeline: "+wrong, "name one of pipelines/, without .yaml")
	}
}

// most reports a list that is too long.
func (c checker) most(path []string, got, most int) {
	if got > most {
		c.key(path, fmt.Sprintf("%s has %d items; at most %d are allowed", path[len(path)-1], got, most), "")
	}
}

// name reports an invalid name, and a name that an earlier item has.
func (c checker) name(path []string, name string, seen map[string]bool) {
	switch wrong := naming.Check(name); {
	case c.doc.Wrong(path...):
	case wrong != "":
		c.value(path, wrong, "")
	case seen[name]:
		c.value(path, fmt.Sprintf("%q is already defined above", name), "")
	}
	seen[name] = true
}

func (c checker) wait(path []string, d *metav1.Duration, least time.Duration) {
	if d != nil && !c.doc.Wrong(path...) && (d.Duration < least || d.Duration > maxWait) {
		c.value(path, fmt.Sprintf("%s is %s; %s to %s makes sense", path[len(path)-1], d.Duration, least, maxWait), "")
	}
}

// windows compiles the windows, and reports and skips invalid ones.
func (c checker) windows(path []string, specs []v1alpha1.Window) window.Windows {
	c.most(path, len(specs), maxWindows)
	var out window.Windows
	for i, spec := range specs {
		path := yamlfile.Below(path, strconv.Itoa(i))
		if c.doc.Wrong(path...) {
			continue
		}
		w, err := window.New(spec.Cron, spec.Duration.Duration, spec.TimeZone)
		if err != nil {
			c.value(path, err.Error(), "for example {cron: 0 9 * * 1-5, duration: 8h, timeZone: Europe/Berlin}")
			continue
		}
		out = append(out, w)
	}
	return out
}

// text checks a text with placeholders.
func (c checker) text(path []string, text string) {
	if len(text) > maxQuery {
		c.value(path, fmt.Sprintf("%s has %d bytes; at most %d are allowed", path[len(path)-1], len(text), maxQuery), "")
	}
	if unknown := unknownPlaceholder(text); unknown != "" {
		c.value(path, unknown+" stands for nothing", knownPlaceholders)
	}
}

func (c checker) address(path []string, address string) {
	u, err := url.Parse(address)
	switch {
	case c.doc.Wrong(path...):
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		c.value(path, fmt.Sprintf("%s %q is not an http or https URL", path[len(path)-1], address), "")
	case u.User != nil:
		c.value(path, path[len(path)-1]+" holds credentials: many people can read what is in git", "")
	}
}

func (c checker) template(at []string, name string) *templateRef {
	if name != path.Clean(name) || path.IsAbs(name) || strings.HasPrefix(name, "../") || !isYAML(name) {
		c.value(at, fmt.Sprintf("template %q is not the path of a .yaml file from the root of the repository", name), "")
		return nil
	}
	return &templateRef{name, c.doc.ValuePoint(at...)}
}

// span checks that a freeze ends after its start.
func (c checker) span(f v1alpha1.Freeze) {
	if f.From != nil && f.Until != nil && !f.From.Before(f.Until) {
		c.value([]string{"until"}, "it ends before it begins", "")
	}
}

// names checks a list of names, and returns their positions.
func (c checker) names(key string, names []string) (at []yamlfile.Point) {
	c.some(key, len(names))
	for i, name := range names {
		path := []string{key, strconv.Itoa(i)}
		if wrong := naming.Check(name); wrong != "" && !c.doc.Wrong(path...) {
			c.value(path, wrong, "")
		}
		at = append(at, c.doc.ValuePoint(path...))
	}
	return at
}

// some reports a list that is set but empty, or too long.
func (c checker) some(key string, n int) {
	if _, set := c.doc.Lookup(key); set != nil && n == 0 && !c.doc.Wrong(key) {
		c.key([]string{key}, key+" names none", "leave it out for all")
	}
	c.most([]string{key}, n, maxFrozen)
}
