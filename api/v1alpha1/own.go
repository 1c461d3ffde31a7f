package v1alpha1

import (
	"path"
	"slices"
)

// OwnObjects select the objects in which Keelson itself remembers what it did and who does
// it, in the hub and in target clusters. No component may have one: it would rewrite what
// Keelson knows of another. Whatever keeps a further object adds it here.
func OwnObjects() []ObjectMatch {
	own := func(group, kind, name string) ObjectMatch {
		return ObjectMatch{Group: group, Kinds: []string{kind}, Namespace: Namespace, Name: name}
	}
	return []ObjectMatch{
		own(GroupCore, "Secret", "record-*"),        // what was applied, and its parts
		own(GroupCore, "Secret", "keelson-intents"), // what is about to be updated
		own(GroupCore, "Secret", "mask-key"),
		own(GroupCore, "ConfigMap", "keelson-told-*"), // by notifications
		own(GroupCore, "ConfigMap", "keelson-git-*"),  // what the repository was
		own("coordination.k8s.io", "Lease", "keelson-*"),
		own(GroupVersion.Group, "*", "*"), // statuses
	}
}

// IsOwn reports whether an object is one of [OwnObjects].
func IsOwn(group, kind, namespace, name string) bool {
	return slices.ContainsFunc(OwnObjects(), func(m ObjectMatch) bool { return m.Matches(group, kind, namespace, name) })
}

// GroupCore stands in an [ObjectMatch] for the group of Services, which has no name.
const GroupCore = "core"

// Matches reports whether an object is selected. A malformed pattern selects none.
func (m ObjectMatch) Matches(group, kind, namespace, name string) bool {
	if m.Group == GroupCore && group == "" {
		m.Group = ""
	}
	return glob(m.Group, group) && glob(m.Namespace, namespace) && glob(m.Name, name) &&
		(len(m.Kinds) == 0 || slices.ContainsFunc(m.Kinds, func(k string) bool { return glob(k, kind) }))
}

func glob(pattern, s string) bool {
	if pattern == "" {
		return true
	}
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}
