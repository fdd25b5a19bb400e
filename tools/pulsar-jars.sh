#!/usr/bin/env bash
# pulsar-jars.sh VERSION puts a standalone broker together from Maven Central's jars, for releases whose distribution is not
# to be had where this runs. It goes into the cache of pulsar.sh, which uses it as any other:
#
#   tools/pulsar-jars.sh 3.0.7 && RINGFENCE_PULSAR_VERSION=3.0.7 tools/pulsar.sh run -- go test ./internal/source
#
# The broker and all that it depends on are those of the release. The scripts and the settings of a standalone are those of
# pulsar.sh's own release, without what its broker.conf says too: so all defaults are those of the release itself.
#
# Pulsar 5 needs Java 21 (JAVA_HOME).
set -euo pipefail

readonly VERSION=${1:?a version of Pulsar, such as 4.2.4}
readonly CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ringfence
readonly HOME_DIR=$CACHE/pulsar-$VERSION
readonly PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.8.1
cd "$(dirname "$0")/.."

like=$(env -u RINGFENCE_PULSAR_VERSION RINGFENCE_PULSAR_FROM=dist tools/pulsar.sh home)
tmp=$(mktemp -d "$CACHE/.jars.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

managed() { # GROUP ARTIFACT VERSION [bom]
	printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>%s</dependency>\n' "$1" "$2" "$3" \
		"${4:+<type>pom</type><scope>import</scope>}"
}

# What the release's own build sets, and its published artifacts do not.
versions() {
	case $VERSION in
	5.*)
		managed org.apache.zookeeper zookeeper 3.9.4
		managed org.apache.zookeeper zookeeper-jute 3.9.4
		managed org.apache.logging.log4j log4j-bom 2.25.4 bom
		managed com.fasterxml.jackson jackson-bom 2.21.7 bom
		managed org.apache.pulsar pulsar-bom "$VERSION" bom
		;;
	*) managed org.apache.pulsar pulsar "$VERSION" bom ;;
	esac
}

cat >"$tmp/pom.xml" <<XML
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>broker</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencyManagement><dependencies>$(versions)</dependencies></dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>$VERSION</version>
      <exclusions>
        <exclusion><groupId>io.netty</groupId><artifactId>netty-resolver-dns-native-macos</artifactId></exclusion>
        <exclusion><groupId>org.apache.distributedlog</groupId><artifactId>distributedlog-core</artifactId></exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
XML
cat >"$tmp/settings.xml" <<'XML'
<settings>
  <mirrors><mirror><id>central-for-all</id><mirrorOf>*</mirrorOf><url>https://repo.maven.apache.org/maven2</url></mirror></mirrors>
</settings>
XML
(cd "$tmp" && mvn -q -B -gs settings.xml -Dmaven.repo.local="$tmp/repo" "$PLUGIN:copy-dependencies" -DincludeScope=runtime -DoutputDirectory=tree/lib </dev/null)
cp -r "$like/bin" "$like/conf" "$tmp/tree/"

# The lines of standalone.conf that broker.conf does not have, or has otherwise.
grep -v '^#' "$like/conf/standalone.conf" | grep -vxFf <(grep -v '^#' "$like/conf/broker.conf" | grep .) >"$tmp/tree/conf/standalone.conf"
cat >"$tmp/tree/conf/log4j2.properties" <<'CONF'
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %-5p %c{1} - %m%n%ex
CONF
sed -i 's|/conf/log4j2.yaml|/conf/log4j2.properties|' "$tmp/tree/bin/pulsar"

# Its tools are not among the broker's jars: those of pulsar.sh's own release do.
for tool in pulsar-client pulsar-perf; do
	printf '#!/bin/sh\nexec %q/bin/%s "$@"\n' "$like" "$tool" >"$tmp/tree/bin/$tool"
done

jars=("$tmp"/tree/lib/*.jar)
printf '%s\n' "${#jars[@]}" >"$tmp/tree/.complete"
rm -rf "$HOME_DIR"
mv "$tmp/tree" "$HOME_DIR"
