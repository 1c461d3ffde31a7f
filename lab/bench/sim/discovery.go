package sim

import (
	"encoding/json"
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// discovery lists the served kinds: aggregated in one document if the client asks for it, else
// group by group.
func (a *answer) discovery(s *surface, path string) {
	lists := map[string]apidiscoveryv2.APIGroupDiscoveryList{
		"api": {Items: []apidiscoveryv2.APIGroupDiscovery{s.core}}, "apis": {Items: s.groups},
	}
	top, rest, _ := strings.Cut(path, "/")
	all := lists[top]
	if rest == "" && strings.Contains(a.r.Header.Get("Accept"), "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList") {
		all.TypeMeta = metav1.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"}
		a.plain(http.StatusOK, aggregated, &all)
		return
	}
	groups, resources, _ := discovery.SplitGroupsAndResources(all)
	switch gv, err := schema.ParseGroupVersion(rest); {
	case path == "api":
		a.plain(http.StatusOK, runtime.ContentTypeJSON, &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	case path == "apis":
		groups.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}
		a.plain(http.StatusOK, runtime.ContentTypeJSON, groups)
		return
	case err == nil && resources[gv] != nil:
		resources[gv].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}
		a.plain(http.StatusOK, runtime.ContentTypeJSON, resources[gv])
		return
	}
	for i := range groups.Groups {
		if g := &groups.Groups[i]; top == "apis" && g.Name == rest {
			g.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}
			a.plain(http.StatusOK, runtime.ContentTypeJSON, g)
			return
		}
	}
	a.notServed()
}

// plain sends a document as JSON, whatever was negotiated.
func (a *answer) plain(code int, media string, document any) {
	data, err := json.Marshal(document)
	if err != nil {
		a.fail(err)
		return
	}
	a.send(code, media, data)
}
