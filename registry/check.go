package registry

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// checker reports mistakes in the content of a well-formed file.
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

func (c checker) verify(got v1alpha1.Verify) {
	c.oneOf([]string{"verify"}, string(got), string(v1alpha1.VerifySigned), string(v1alpha1.VerifySignedTags))
}

func (c checker) promotableTags(got v1alpha1.PromotableTags) {
	c.oneOf([]string{"promotableTags"}, string(got), string(v1alpha1.PromotableMerged), string(v1alpha1.PromotableAll))
}

func (c checker) dangerProfile(got v1alpha1.DangerProfile) {
	c.oneOf([]string{"dangerProfile"}, string(got), string(v1alpha1.ProfileBaseline), string(v1alpha1.ProfileStrict), string(v1alpha1.ProfileOff))
}

func (c checker) projects(got v1alpha1.Projects) {
	c.oneOf([]string{"projects"}, string(got), string(v1alpha1.ProjectsOptional), string(v1alpha1.ProjectsRequired))
}

// maxRules bounds the danger rules and the health rules of one file. Each danger rule is evaluated
// for every changed field.
const maxRules = 200

// few reports a list longer than maxRules, once. It returns true for each rule above the limit.
func (c checker) few(path []string, i, all int, what string) (tooMany bool) {
	if i == maxRules {
		c.key(path, fmt.Sprintf("there are %d %s, and at most %d are read", all, what, maxRules),
			"a rule takes several kinds (match.kinds) and a pattern of names")
	}
	return i >= maxRules
}

// danger checks rules. lockable is true for the rules of fleet.yaml.
func (c checker) danger(rules []v1alpha1.DangerRule, lockable bool) {
	seen := map[string]bool{}
	for i, rule := range rules {
		path := []string{"danger", strconv.Itoa(i)}
		if c.few(path, i, len(rules), "danger rules") {
			return
		}
		if rule.Name != "" && seen[rule.Name] {
			c.value(yamlfile.Below(path, "name"), fmt.Sprintf("a rule called %q stands above already", rule.Name), "")
		}
		seen[rule.Name] = true
		if rule.Locked && !lockable {
			c.key(yamlfile.Below(path, "locked"), "only the rules of fleet.yaml can be locked", "move the rule there")
		}
		c.oneOf(yamlfile.Below(path, "effect"), string(rule.Effect), string(v1alpha1.EffectKeep),
			string(v1alpha1.EffectHold), string(v1alpha1.EffectDeny), string(v1alpha1.EffectWarn), string(v1alpha1.EffectAllow))
		c.oneOf(yamlfile.Below(path, "scope"), string(rule.Scope), string(v1alpha1.ScopeObject), string(v1alpha1.ScopeField))
		if rule.Path != "" && !strings.HasPrefix(rule.Path, ".") {
			c.value(yamlfile.Below(path, "path"), fmt.Sprintf("path %q must start with a dot", rule.Path),
				fmt.Sprintf("did you mean %q?", "."+rule.Path))
		}
		for j, event := range rule.On {
			c.event(yamlfile.Below(yamlfile.Below(path, "on"), strconv.Itoa(j)), event)
		}
		if rule.Path != "" && slices.Equal(rule.On, []v1alpha1.Event{v1alpha1.OnDeleteObject}) {
			c.key(yamlfile.Below(path, "path"), "a rule on delete-object alone has no path: the object goes as a whole", "")
		}
	}
}

// health checks rules. It returns for each rule its position ("") and those of its conditions, by
// field.
func (c checker) health(rules []v1alpha1.HealthRule) []map[string]yamlfile.Point {
	var places []map[string]yamlfile.Point
	for i, rule := range rules {
		path := []string{"health", strconv.Itoa(i)}
		c.few(path, i, len(rules), "health rules")
		if len(rule.Match.Kinds) == 0 && !c.doc.Wrong(path...) {
			c.key(yamlfile.Below(path, "match"), "a health rule names the kinds that it is about", "match: {kinds: [Widget]}")
		}
		if rule.Current == "" && rule.InProgress == "" && rule.Failed == "" && !c.doc.Wrong(path...) {
			c.key(path, "a health rule needs at least one of current, inProgress and failed", "")
		}
		at := map[string]yamlfile.Point{"": c.doc.KeyPoint(path...)}
		for _, field := range []string{"current", "inProgress", "failed"} {
			at[field] = c.doc.ValuePoint(yamlfile.Below(path, field)...)
		}
		places = append(places, at)
	}
	return places
}

func (c checker) event(path []string, got v1alpha1.Event) {
	allowed := []string{
		string(v1alpha1.OnAdd), string(v1alpha1.OnChange), string(v1alpha1.OnRemove), string(v1alpha1.OnDeleteObject), string(v1alpha1.OnCreateObject),
	}
	if !slices.Contains(allowed, string(got)) {
		c.value(path, fmt.Sprintf("on holds %q; it may hold %s", got, strings.Join(allowed, ", ")),
			naming.Suggest(string(got), allowed))
	}
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

// image checks one entry of images.yaml.
func (c checker) image(name string, image v1alpha1.Image) {
	path := []string{"images", name}
	if !isImageName(name) {
		c.key(path, fmt.Sprintf("image name %q must start with a letter and hold letters, digits, dashes and underscores", name), "")
	}
	if image.Repository != "" {
		if wrong := checkRepository(image.Repository); wrong != "" {
			c.value(yamlfile.Below(path, "repository"), wrong, "the tag and digest have keys of their own")
		}
	}
	if image.Tag == "" && image.Digest == "" && !c.doc.Wrong(path...) {
		c.key(path, fmt.Sprintf("image %s has neither tag nor digest", name), "")
	}
	if wrong := checkTag(image.Tag); wrong != "" {
		c.value(yamlfile.Below(path, "tag"), wrong, "")
	}
	if image.Digest != "" {
		if wrong := naming.CheckDigest(image.Digest); wrong != "" {
			c.value(yamlfile.Below(path, "digest"), wrong, "")
		}
	}
	if image.Into != nil {
		c.into(yamlfile.Below(path, "into"), *image.Into)
	}
}

func (c checker) into(path []string, into v1alpha1.ImagePaths) {
	for _, part := range intoParts(into) {
		keys := intoKeys(part.path)
		switch {
		case slices.ContainsFunc(keys, func(key string) bool { return !isImageName(key) }):
			c.value(yamlfile.Below(path, part.name), fmt.Sprintf("path %q must be keys with dots between them", part.path),
				"for example controller.image.tag")
		case keys[0] == "images":
			c.value(yamlfile.Below(path, part.name), "the value images is set for every chart already", "")
		}
	}
}

// chartSource checks chart.yaml.
func (c checker) chartSource(s v1alpha1.ChartSource) {
	c.chartOrigin(nil, v1alpha1.ChartDependency{URL: s.URL, Name: s.Name, Version: s.Version, Digest: s.Digest})
	if _, err := semver.NewConstraint(s.Constraint); err != nil && s.Constraint != "" {
		c.value([]string{"constraint"}, fmt.Sprintf("constraint %q is no range of versions: %v", s.Constraint, err), "for example ^1.45")
	}
	if wrong := naming.CheckDigest(s.Files); wrong != "" && s.Files != "" {
		c.value([]string{"files"}, wrong, "")
	}
	if s.Digest == "" && s.Files == "" && !c.doc.Wrong("digest") && !c.doc.Wrong("files") {
		c.key(nil, "neither digest nor files is set, so nothing says which chart is meant", "let keelson vendor write this file")
	}
	for i, d := range s.Dependencies {
		c.chartOrigin([]string{"dependencies", strconv.Itoa(i)}, d)
	}
}

// chartOrigin checks the origin of one chart.
func (c checker) chartOrigin(path []string, d v1alpha1.ChartDependency) {
	if wrong := naming.CheckChartURL(d.URL); wrong != "" && d.URL != "" {
		c.value(yamlfile.Below(path, "url"), wrong, "oci://HOST/PATH/CHART, https://HOST/PATH or file:PATH")
	}
	if wrong := naming.CheckChart(d.Name); wrong != "" && d.Name != "" {
		c.value(yamlfile.Below(path, "name"), wrong, "")
	}
	if _, err := semver.NewVersion(d.Version); err != nil && d.Version != "" {
		c.value(yamlfile.Below(path, "version"), fmt.Sprintf("version %q is not X.Y.Z: %v", d.Version, err), "")
	}
	if wrong := naming.CheckDigest(d.Digest); wrong != "" && d.Digest != "" {
		c.value(yamlfile.Below(path, "digest"), wrong, "")
	}
}

func isImageName(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '-' && r != '_') {
			return false
		}
	}
	return name != ""
}

// checkRepository returns what is wrong with the name of an image without tag and digest.
func checkRepository(repository string) string {
	last := repository[strings.LastIndex(repository, "/")+1:]
	switch {
	case last == "":
		return fmt.Sprintf("repository %q has no name behind the last slash", repository)
	case strings.Contains(repository, "@"):
		return fmt.Sprintf("repository %q holds a digest", repository)
	case strings.Contains(last, ":") && strings.Contains(repository, "/"):
		return fmt.Sprintf("repository %q holds a tag", repository)
	case strings.ContainsFunc(repository, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r > unicode.MaxASCII }):
		return fmt.Sprintf("repository %q holds characters that no repository has", repository)
	}
	return ""
}

func checkTag(tag string) string {
	bad := strings.ContainsFunc(tag, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
	if bad || len(tag) > 128 || strings.HasPrefix(tag, ".") || strings.HasPrefix(tag, "-") {
		return fmt.Sprintf("tag %q is not the tag of an image", tag)
	}
	return ""
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
