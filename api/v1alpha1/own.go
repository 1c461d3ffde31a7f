package v1alpha1

import (
	"path"
	"slices"
)

// OwnObjects selects the objects in which Keelson stores its own state, in the hub and in target
// clusters. No component may contain one, because it could change the state of another component.
// Code that stores a further object must add it here.
func OwnObjects() []ObjectMatch {
	own := func(group, kind, name string) ObjectMatch {
		return ObjectMatch{Group: group, Kinds: []string{kind}, Namespace: Namespace, Name: name}
	}
	return []ObjectMatch{
		own(GroupCore, "Secret", "record-*"),        // what was applied, with its parts
		own(GroupCore, "Secret", "keelson-intents"), // updates about to be made
		own(GroupCore, "Secret", "mask-key"),
		own(GroupCore, "ConfigMap", "keelson-told-*"), // state of notifications
		own(GroupCore, "ConfigMap", "keelson-git-*"),  // state of the repository
		own("coordination.k8s.io", "Lease", "keelson-*"),
		own(GroupVersion.Group, "*", "*"), // statuses
	}
}

// IsOwn reports whether an object is one of [OwnObjects].
func IsOwn(group, kind, namespace, name string) bool {
	return slices.ContainsFunc(OwnObjects(), func(m ObjectMatch) bool { return m.Matches(group, kind, namespace, name) })
}

// GroupCore is the name in an [ObjectMatch] of the group of Services, whose real name is empty.
const GroupCore = "core"

// Matches reports whether an object is selected. A malformed pattern selects no object.
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
