package sim

import (
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// discovery lists the served kinds: aggregated in one document if the client asks for it, else
// group by group.
func (a *answer) discovery(s *surface, path string) {
	all := strings.Contains(a.r.Header.Get("Accept"), "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	parts := strings.Split(path, "/")
	switch {
	case path == "api" && all:
		a.group(apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{s.core}})
	case path == "apis" && all:
		a.group(apidiscoveryv2.APIGroupDiscoveryList{Items: s.groups})
	case path == "api":
		a.plain(&metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case path == "apis":
		list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}}
		for i := range s.groups {
			list.Groups = append(list.Groups, legacyGroup(&s.groups[i]))
		}
		a.plain(list)
	case len(parts) == 2 && parts[0] == "api":
		a.resources(&s.core, parts[1])
	case len(parts) == 2 || len(parts) == 3:
		for i := range s.groups {
			if g := &s.groups[i]; g.Name == parts[1] && len(parts) == 3 {
				a.resources(g, parts[2])
				return
			} else if g.Name == parts[1] {
				group := legacyGroup(g)
				group.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}
				a.plain(&group)
				return
			}
		}
		a.notServed()
	default:
		a.notServed()
	}
}

func (a *answer) group(list apidiscoveryv2.APIGroupDiscoveryList) {
	list.TypeMeta = metav1.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"}
	data, _, err := (&answer{}).encoded(&list)
	if err != nil {
		a.fail(err)
		return
	}
	a.send(http.StatusOK, aggregated, data)
}

func (a *answer) plain(o runtime.Object) {
	data, media, err := (&answer{}).encoded(o)
	if err != nil {
		a.fail(err)
		return
	}
	a.send(http.StatusOK, media, data)
}

func legacyGroup(g *apidiscoveryv2.APIGroupDiscovery) metav1.APIGroup {
	out := metav1.APIGroup{Name: g.Name}
	for _, v := range g.Versions {
		gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v.Version})
	}
	out.PreferredVersion = out.Versions[0]
	return out
}

func (a *answer) resources(g *apidiscoveryv2.APIGroupDiscovery, version string) {
	for _, v := range g.Versions {
		if v.Version != version {
			continue
		}
		list := &metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: schema.GroupVersion{Group: g.Name, Version: version}.String(),
		}
		for _, r := range v.Resources {
			namespaced := r.Scope == apidiscoveryv2.ScopeNamespace
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: r.Resource, SingularName: r.SingularResource, Namespaced: namespaced, Kind: r.ResponseKind.Kind,
				Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories,
			})
			for _, sub := range r.Subresources {
				list.APIResources = append(list.APIResources, metav1.APIResource{
					Name: r.Resource + "/" + sub.Subresource, Namespaced: namespaced, Kind: r.ResponseKind.Kind, Verbs: sub.Verbs,
				})
			}
		}
		a.plain(list)
		return
	}
	a.notServed()
}
