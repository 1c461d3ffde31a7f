package registry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// maxRules bounds the danger rules and the health rules of one file. Each danger rule is evaluated
// for every changed field.
const maxRules = 200

// maxRuleText is the most bytes of a rule's reason, and of its advice; maxRuleName those of its name.
// They stand at every field that the rule holds, and at every object.
const (
	maxRuleText = 1000
	maxRuleName = 100
)

// ruleChecker checks the danger rules and the health rules of a file.
type ruleChecker struct{ checker }

// few reports a list longer than maxRules, once. It returns true for each rule above the limit.
func (c ruleChecker) few(path []string, i, all int, what string) (tooMany bool) {
	if i == maxRules {
		c.key(path, fmt.Sprintf("there are %d %s, and at most %d are read", all, what, maxRules),
			"a rule takes several kinds (match.kinds) and a pattern of names")
	}
	return i >= maxRules
}

// text reports a text that is too long.
func (c ruleChecker) text(path []string, text string, most int) {
	if len(text) > most {
		c.value(path, fmt.Sprintf("%s has %d bytes; at most %d are allowed", path[len(path)-1], len(text), most), "shorten it; a comment in the file may say more")
	}
}

// danger checks rules. lockable is true for the rules of fleet.yaml.
func (c ruleChecker) danger(rules []v1alpha1.DangerRule, lockable bool) {
	seen := map[string]bool{}
	for i, rule := range rules {
		path := []string{"danger", strconv.Itoa(i)}
		if c.few(path, i, len(rules), "danger rules") {
			return
		}
		if rule.Name != "" && seen[rule.Name] {
			c.value(yamlfile.Below(path, "name"), fmt.Sprintf("a rule called %q is already defined above", rule.Name), "")
		}
		seen[rule.Name] = true
		c.text(yamlfile.Below(path, "name"), rule.Name, maxRuleName)
		c.text(yamlfile.Below(path, "because"), rule.Because, maxRuleText)
		c.text(yamlfile.Below(path, "fix"), rule.Fix, maxRuleText)
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
func (c ruleChecker) health(rules []v1alpha1.HealthRule) []map[string]yamlfile.Point {
	var places []map[string]yamlfile.Point
	for i, rule := range rules {
		path := []string{"health", strconv.Itoa(i)}
		c.few(path, i, len(rules), "health rules")
		c.text(yamlfile.Below(path, "because"), rule.Because, maxRuleText)
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

func (c ruleChecker) event(path []string, got v1alpha1.Event) {
	allowed := []string{
		string(v1alpha1.OnAdd), string(v1alpha1.OnChange), string(v1alpha1.OnRemove), string(v1alpha1.OnDeleteObject), string(v1alpha1.OnCreateObject),
	}
	if !slices.Contains(allowed, string(got)) {
		c.value(path, fmt.Sprintf("on holds %q; it may hold %s", got, strings.Join(allowed, ", ")),
			naming.Suggest(string(got), allowed))
	}
}
